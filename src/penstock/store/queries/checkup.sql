-- What `penstock doctor` reads. Catalogues and single rows only: it may run beside engines under load.

-- name: checkup_server
SELECT current_setting('server_version_num')::int, current_setting('server_version'), current_setting('server_encoding'),
  pg_is_in_recovery(), extract(epoch FROM clock_timestamp())::float8,
  (SELECT jsonb_object_agg(name, setting) FROM pg_settings WHERE name IN ('fsync', 'full_page_writes', 'synchronous_commit',
    'autovacuum', 'max_connections', 'superuser_reserved_connections', 'shared_buffers', 'max_wal_size',
    'client_connection_check_interval', 'synchronous_standby_names')),
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend')::int,
  (SELECT count(*) FROM pg_stat_replication WHERE sync_state IN ('sync', 'quorum'))::int,
  (SELECT max(age(datfrozenxid)) FROM pg_database)::int,
  (SELECT count(*) FROM pg_stat_activity WHERE backend_type = 'client backend' AND datname = current_database())::int

-- name: checkup_tables
-- Name, owner is ours, we may read and write, rows alive, rows dead, bytes; of Penstock's own schema.
SELECT c.relname, pg_has_role(c.relowner, 'USAGE'),
  has_table_privilege(c.oid, 'SELECT') AND has_table_privilege(c.oid, 'INSERT') AND has_table_privilege(c.oid, 'UPDATE')
    AND has_table_privilege(c.oid, 'DELETE'),
  coalesce(s.n_live_tup, 0), coalesce(s.n_dead_tup, 0), pg_total_relation_size(c.oid)
FROM pg_class c LEFT JOIN pg_stat_user_tables s ON s.relid = c.oid
WHERE c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('penstock_schema')) AND c.relkind IN ('r', 'p')
ORDER BY c.relname

-- name: checkup_indexes
-- Those that a build left unfinished: they cost writes and serve nothing.
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE NOT i.indisvalid AND c.relnamespace = (SELECT relnamespace FROM pg_class WHERE oid = to_regclass('penstock_schema'))
ORDER BY c.relname

-- name: checkup_may_create
SELECT has_schema_privilege((SELECT relnamespace FROM pg_class WHERE oid = to_regclass('penstock_schema')), 'CREATE')

-- name: checkup_horizon
-- What keeps dead rows alive, or WAL on the disk: what it is, for how many seconds or transactions, and how many bytes.
SELECT 'transaction of ' || coalesce(nullif(application_name, ''), 'a client') || ' (process ' || pid || ', ' || state || ')',
  extract(epoch FROM clock_timestamp() - xact_start)::float8, NULL::int, NULL::bigint
FROM pg_stat_activity
WHERE xact_start IS NOT NULL AND backend_type = 'client backend' AND pid <> pg_backend_pid() AND datname = current_database()
UNION ALL
SELECT 'prepared transaction ' || gid, extract(epoch FROM clock_timestamp() - prepared)::float8, NULL, NULL
FROM pg_prepared_xacts WHERE database = current_database()
UNION ALL
SELECT 'replication slot ' || slot_name, NULL, age(xmin),
  (CASE WHEN pg_is_in_recovery() THEN pg_last_wal_replay_lsn() ELSE pg_current_wal_insert_lsn() END - restart_lsn)::bigint
FROM pg_replication_slots

-- name: checkup_partitions
-- Per log: until when partitions are made (null: none), and whether rows lie outside of all of them.
SELECT p.parent, (SELECT extract(epoch FROM max(l.until) - clock_timestamp())::float8 FROM log_partition l WHERE l.parent = p.parent),
  CASE p.parent WHEN 'history' THEN EXISTS (SELECT FROM history_other) WHEN 'journal' THEN EXISTS (SELECT FROM journal_other)
    ELSE EXISTS (SELECT FROM audit_other) END
FROM (VALUES ('history'), ('journal'), ('audit')) p(parent)
