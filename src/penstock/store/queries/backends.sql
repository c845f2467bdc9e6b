-- Sessions of the server.

-- name: this_backend
-- What tells a session of the server from all others that it has, or had: as a number, as the text of a time is another one in
-- each session's time zone, and steps that are transactions (`durable/transaction`) have sessions of the program's.
SELECT pg_backend_pid(), extract(epoch FROM backend_start)::text FROM pg_stat_activity WHERE pid = pg_backend_pid()

-- name: this_schema
-- Where the tables of this session are.
SELECT current_schema()::text

-- name: end_backend
-- Ends a session ($1 process $2 start), and answers whether it was still there.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = $1::int AND extract(epoch FROM backend_start)::text = $2::text
