-- When the node of a taken invocation was first asked to cancel it. What it has not taken is cancelled at once.
ALTER TABLE action_execution_target ADD COLUMN cancel_requested_ms INTEGER;
-- What a node is told to cancel when it connects.
CREATE INDEX action_execution_target_cancel_idx ON action_execution_target (node_id)
    WHERE cancel_requested_ms IS NOT NULL;
-- Whom to ask again, and whom not to wait for any longer.
CREATE INDEX action_execution_target_unconfirmed_idx ON action_execution_target (cancel_requested_ms)
    WHERE cancel_requested_ms IS NOT NULL AND ended_ms IS NULL;

-- The outbox takes one more type of event. A check cannot be changed in place.
CREATE TABLE outbox_next (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    event_type   TEXT NOT NULL CHECK (event_type IN ('action_request', 'action_cancel', 'hook_baseline_updated')),
    node_id      BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    execution_id BLOB REFERENCES action_execution (id) ON DELETE CASCADE,
    hook         TEXT,
    created_ms   INTEGER NOT NULL
);
INSERT INTO outbox_next SELECT id, event_type, node_id, execution_id, hook, created_ms FROM outbox;
DROP TABLE outbox;
ALTER TABLE outbox_next RENAME TO outbox;
