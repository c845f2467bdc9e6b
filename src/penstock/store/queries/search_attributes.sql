-- Search attributes: what instances of definitions that declare some are found by.

-- name: set_search_attributes
-- Of the instances $1, under their locks: names $2 and what is indexed of their values, texts $3 and numbers $4.
INSERT INTO search_attribute (instance_id, name, text, number)
SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::float8[])
ON CONFLICT (instance_id, name) DO UPDATE SET text = excluded.text, number = excluded.number

-- name: undeclared
-- Of names $1 those by which nothing is found: no instance has them, and no definition declares them. Definitions are read only
-- where no instance has a name.
SELECT k.name FROM unnest($1::text[]) AS k(name)
WHERE NOT EXISTS (SELECT FROM search_attribute a WHERE a.name = k.name AND a.text IS NOT NULL)
  AND NOT EXISTS (SELECT FROM search_attribute a WHERE a.name = k.name AND a.number IS NOT NULL)
  AND NOT EXISTS (SELECT FROM definition d
    WHERE CASE WHEN d.content LIKE '%"searchAttributes"%' THEN jsonb_exists(d.content::jsonb -> 'searchAttributes', k.name) END)

-- name: list_attributed
-- In the status $7 (null: any), with the attribute $8 as the text $9 or a number from $10 to below $11, and likewise with all
-- of the others: names $12, texts $13, numbers from $14 to below $15. The parameters before these are those of all lists.
SELECT a.instance_id FROM search_attribute a JOIN instance i ON i.id = a.instance_id
WHERE a.name = $8::text AND (a.text = $9::text OR a.number >= $10::float8 AND a.number < $11::float8)
  AND a.instance_id < $5::bigint AND a.instance_id >= $6::bigint AND ($1::int[] IS NULL OR i.definition = ANY($1))
  AND ($2::text IS NULL OR i.business_key COLLATE "C" = $2)
  AND NOT EXISTS (SELECT FROM unnest($12::text[], $13::text[], $14::float8[], $15::float8[]) AS w(name, text, low, high)
    WHERE NOT EXISTS (SELECT FROM search_attribute b
      WHERE b.instance_id = a.instance_id AND b.name = w.name AND (b.text = w.text OR b.number >= w.low AND b.number < w.high)))
  AND ($7::text IS NULL OR $7 = 'DELAYED' AND EXISTS (SELECT FROM token t WHERE t.id = i.id AND t.state = 8 /* DELAYED */) 
    OR $7 = 'BLOCKED' AND EXISTS (SELECT FROM blocked_run b WHERE b.instance_id = i.id) OR $7 = CASE i.status WHEN 1 /* COMPLETED */ THEN 'COMPLETED' WHEN 2 /* FAILED */ THEN 'FAILED'
    WHEN 3 /* CANCELLED */ THEN 'CANCELLED' ELSE CASE WHEN EXISTS (SELECT FROM parked p WHERE p.instance_id = i.id) THEN 'WAITING' ELSE 'ACTIVE' END END)
  AND ($16::text IS NULL OR i.business_key COLLATE "C" ^@ $16)
ORDER BY a.instance_id DESC LIMIT $3::int OFFSET $4::int
