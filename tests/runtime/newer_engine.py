"""An engine of the version after this one: the same code with one migration more, which only adds, as all have to.

Run like `python -m penstock`. The schema is changed before anything else of Penstock reads its version.
"""

from __future__ import annotations

from penstock.store.db import schema

NEWER = schema.SCHEMA_VERSION + 1
MIGRATION = """
ALTER TABLE token ADD COLUMN newer int NOT NULL DEFAULT 7;
ALTER TABLE instance ADD COLUMN newer text;
CREATE TABLE newer (id bigint PRIMARY KEY);
"""

if __name__ == "__main__":
    setattr(schema, "MIGRATIONS", {**schema.MIGRATIONS, NEWER: MIGRATION})  # noqa: B010 - it is final for all others
    setattr(schema, "SCHEMA_VERSION", NEWER)  # noqa: B010
    from penstock.cli import main

    main()
