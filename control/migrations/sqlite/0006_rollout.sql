-- Dispatches that go out in steps, and deadlines that each target has of its own.

-- How long a node has to take the action, where that is apart from how long it may run.
ALTER TABLE action_execution ADD COLUMN deliver_within_seconds INTEGER CHECK (deliver_within_seconds > 0);
-- How many of the live targets a rollout still holds back, and how many targets ended as failed or timeout: what the next
-- release is decided by, without a count.
ALTER TABLE action_execution ADD COLUMN held_targets INTEGER NOT NULL DEFAULT 0 CHECK (held_targets >= 0);
ALTER TABLE action_execution ADD COLUMN failed_targets INTEGER NOT NULL DEFAULT 0 CHECK (failed_targets >= 0);
-- When a deadline of one of its targets may pass next; NULL when none can.
ALTER TABLE action_execution ADD COLUMN due_ms INTEGER;
UPDATE action_execution SET due_ms = expires_ms WHERE terminal_status IS NULL;
UPDATE action_execution SET failed_targets =
    (SELECT count(*) FROM action_execution_target t WHERE t.execution_id = id AND t.status IN ('failed', 'timeout'));
DROP INDEX action_execution_live_by_expiry_idx;
CREATE INDEX action_execution_live_by_due_idx ON action_execution (due_ms) WHERE terminal_status IS NULL;
CREATE INDEX action_execution_held_idx ON action_execution (id) WHERE held_targets > 0;

-- NULL in all three while the target is held: it is owed to nobody, and its time does not run.
ALTER TABLE action_execution_target ADD COLUMN released_ms INTEGER;
ALTER TABLE action_execution_target ADD COLUMN deliver_by_ms INTEGER;
ALTER TABLE action_execution_target ADD COLUMN expires_ms INTEGER;
-- Its place in the order in which a rollout releases, from 1; NULL without one.
ALTER TABLE action_execution_target ADD COLUMN rollout_position INTEGER;
UPDATE action_execution_target SET
    released_ms = created_ms,
    deliver_by_ms = (SELECT e.expires_ms FROM action_execution e WHERE e.id = execution_id),
    expires_ms = (SELECT e.expires_ms FROM action_execution e WHERE e.id = execution_id);
DROP INDEX action_execution_target_owed_idx;
CREATE INDEX action_execution_target_owed_idx ON action_execution_target (node_id)
    WHERE status = 'pending' AND released_ms IS NOT NULL;
CREATE INDEX action_execution_target_held_idx ON action_execution_target (execution_id, rollout_position)
    WHERE status = 'pending' AND released_ms IS NULL;

CREATE TABLE action_execution_rollout (
    execution_id    BLOB PRIMARY KEY NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE,
    -- What was asked for, as it came to for this cohort.
    plan            TEXT NOT NULL,
    -- The last place in the order that was released; 0 before the first.
    released_up_to  INTEGER NOT NULL DEFAULT 0,
    paused_ms       INTEGER,
    paused_by       TEXT,
    -- Why what was held was cancelled.
    stopped         TEXT,
    -- What is held then is cancelled, paused or not.
    ends_ms         INTEGER NOT NULL,
    CHECK ((paused_ms IS NULL) = (paused_by IS NULL))
) WITHOUT ROWID;
