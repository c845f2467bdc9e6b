-- concurrently
-- Business keys by how they begin, whatever the database's collation; and the instances that one has started. Takes the place
-- of instance_business_key, which goes when no older engine lives (`store/db/schema.py`).

DROP INDEX CONCURRENTLY IF EXISTS instance_key_prefix;
CREATE INDEX CONCURRENTLY instance_key_prefix ON instance (business_key COLLATE "C", id) WHERE business_key IS NOT NULL;
DROP INDEX CONCURRENTLY IF EXISTS instance_parent;
CREATE INDEX CONCURRENTLY instance_parent ON instance (parent_id, id) WHERE parent_id IS NOT NULL;
