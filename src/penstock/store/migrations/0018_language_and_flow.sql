-- What the language and the flow of jobs got next.

-- forEach: which item an execution was for.
ALTER TABLE history ADD COLUMN item int;
