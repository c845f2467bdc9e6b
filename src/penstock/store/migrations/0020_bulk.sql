-- Instances of a bulk operation's page that are counted already: what is done to each says so in its own transaction.
ALTER TABLE bulk_operation ADD COLUMN counted bigint[] NOT NULL DEFAULT '{}';
