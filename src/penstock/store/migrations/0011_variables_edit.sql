-- What people changed in the variables of instances, so that the variables as of any step can still be told.

CREATE TABLE variables_edit (
  instance_id bigint NOT NULL,
  pos         bigint NOT NULL,
  before      jsonb NOT NULL,
  PRIMARY KEY (instance_id, pos)
);
