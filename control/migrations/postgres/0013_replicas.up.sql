-- The services that share the database, each with the instant of its last sign of life.
CREATE TABLE replica (
    id uuid PRIMARY KEY,
    started_at timestamptz NOT NULL,
    seen_at timestamptz NOT NULL
);
-- Which of them holds the node's stream; NULL when none does. A replica that was killed leaves its name behind: it counts
-- as long as it is seen.
ALTER TABLE node ADD COLUMN replica_id uuid;
