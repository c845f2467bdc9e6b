-- Instance keys: unique among the open instances of a definition id, or for as long as they are kept.

-- name: claim_instance_key
-- Takes a key ($1 definition id $2 key) for the instance $3, to be kept after its end when $4; who has it then. Nothing
-- when another instance has it already, unless that is to keep it from now on.
INSERT INTO instance_key (definition_id, key, instance_id, kept) VALUES ($1::text, $2::text, $3::bigint, $4::boolean)
ON CONFLICT (definition_id, key) DO UPDATE SET kept = true WHERE excluded.kept AND NOT instance_key.kept
RETURNING instance_id

-- name: find_instance_key
SELECT instance_id FROM instance_key WHERE definition_id = $1::text AND key = $2::text

-- name: reclaim_instance_key
-- Takes the key of a failed instance $1 again, which is about to be reopened; nothing when it has none or it is taken.
INSERT INTO instance_key (definition_id, key, instance_id)
SELECT d.id, i.instance_key, i.id FROM instance i JOIN definition d ON d.key = i.definition
JOIN abnormal_end e ON e.status = 2 /* FAILED */ AND e.instance_id = i.id AND e.tokens IS NOT NULL
WHERE i.id = $1::bigint AND i.status = 2 /* FAILED */ AND i.instance_key IS NOT NULL
ON CONFLICT (definition_id, key) DO NOTHING

-- name: other_holder
-- The instance that holds the instance key of instance $1 in its place.
SELECT k.instance_id FROM instance i JOIN definition d ON d.key = i.definition
JOIN instance_key k ON k.definition_id = d.id AND k.key = i.instance_key
WHERE i.id = $1::bigint AND k.instance_id <> i.id

-- name: forget_keys
DELETE FROM instance_key WHERE instance_id = ANY($1::bigint[]) AND NOT kept
