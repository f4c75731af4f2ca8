-- Until when a URL for an upload is good that was given for the invocation: there may be an object since, whatever was
-- reported. NULL when none was given.
ALTER TABLE action_execution_target ADD COLUMN upload_until_ms INTEGER;
UPDATE action_execution_target SET upload_until_ms = updated_ms
    WHERE output_bytes > 16384 OR output_ref LIKE '%"object_store"%';

-- How many targets rest where, and which of them a node has: asked of each execution that is listed, and of each sweep.
CREATE INDEX action_execution_target_status_idx ON action_execution_target (execution_id, status);
-- Whose time for delivery passes next: what a rollout holds, however much, is not in it.
CREATE INDEX action_execution_target_undelivered_idx ON action_execution_target (execution_id, deliver_by_ms)
    WHERE status = 'pending' AND released_ms IS NOT NULL;
-- Who was asked to cancel an execution and has not confirmed it.
CREATE INDEX action_execution_target_asked_idx ON action_execution_target (execution_id, cancel_requested_ms)
    WHERE cancel_requested_ms IS NOT NULL AND ended_ms IS NULL;
