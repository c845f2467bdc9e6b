-- API tokens, for engines with authentication. The version of the set stands in `setting`, so that one look by primary
-- key tells engines whether it has changed.

CREATE TABLE api_token (
  id          text PRIMARY KEY,
  name        text NOT NULL,
  digest      bytea NOT NULL UNIQUE,
  roles       text NOT NULL,
  created_at  timestamptz NOT NULL,
  created_by  text NOT NULL,
  expires_at  timestamptz,
  revoked_at  timestamptz
);
