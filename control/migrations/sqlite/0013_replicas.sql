-- The services that share the database, each with the instant of its last sign of life.
CREATE TABLE replica (
    id         BLOB PRIMARY KEY NOT NULL,
    started_at INTEGER NOT NULL,
    seen_at    INTEGER NOT NULL
) WITHOUT ROWID;
-- Which of them holds the node's stream; NULL when none does, or the only one there is.
ALTER TABLE node ADD COLUMN replica_id BLOB;
