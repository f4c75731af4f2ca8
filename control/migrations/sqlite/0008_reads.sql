-- History that is read by more than its age, and that may go when its retention is over.

-- Lists by action, and by status: NULL is one that is live.
CREATE INDEX action_execution_action_idx ON action_execution (project_id, action_name, created_ms DESC, id DESC);
CREATE INDEX action_execution_status_idx ON action_execution (project_id, terminal_status, created_ms DESC, id DESC);
-- What a node was asked. Targets have the instant of their execution.
CREATE INDEX action_execution_target_node_idx
    ON action_execution_target (node_id, created_ms DESC, execution_id DESC);

-- What is settled, by action, the longest ago first.
CREATE INDEX action_execution_settled_idx ON action_execution (domain_id, action_name, updated_ms)
    WHERE terminal_status IS NOT NULL;
-- What an execution takes with it when it goes.
CREATE INDEX outbox_execution_idx ON outbox (execution_id);

-- Objects of the output store that no row names any more. Written in the commit that removes the row, and removed once
-- the store has said that the object is gone.
CREATE TABLE output_garbage (
    object_key TEXT NOT NULL,
    bucket     TEXT NOT NULL,
    since_ms   INTEGER NOT NULL,
    PRIMARY KEY (bucket, object_key)
) WITHOUT ROWID;

-- The last row that was pruned from the beginning of each chain: the walk along the others begins after it. The newest
-- audit row with the relation retention.audit says the same.
CREATE TABLE audit_pruned (
    domain_id BLOB PRIMARY KEY NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    seq       INTEGER NOT NULL CHECK (seq > 0),
    hash      BLOB NOT NULL CHECK (length(hash) = 32)
) WITHOUT ROWID;
