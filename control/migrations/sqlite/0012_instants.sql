-- Instants are named as they are called on the wire, and in PostgreSQL: there they have a type, and no unit.

ALTER TABLE domain RENAME COLUMN created_ms TO created_at;

ALTER TABLE project RENAME COLUMN created_ms TO created_at;

ALTER TABLE signing_key RENAME COLUMN created_ms TO created_at;
ALTER TABLE signing_key RENAME COLUMN retired_ms TO retired_at;

ALTER TABLE operator_token RENAME COLUMN created_ms TO created_at;
ALTER TABLE operator_token RENAME COLUMN expires_ms TO expires_at;
ALTER TABLE operator_token RENAME COLUMN revoked_ms TO revoked_at;
ALTER TABLE operator_token RENAME COLUMN rotated_ms TO rotated_at;
ALTER TABLE operator_token RENAME COLUMN previous_until_ms TO previous_until;

ALTER TABLE bootstrap_token RENAME COLUMN created_ms TO created_at;
ALTER TABLE bootstrap_token RENAME COLUMN expires_ms TO expires_at;
ALTER TABLE bootstrap_token RENAME COLUMN revoked_ms TO revoked_at;

ALTER TABLE node RENAME COLUMN created_ms TO created_at;
ALTER TABLE node RENAME COLUMN last_seen_ms TO last_seen_at;
ALTER TABLE node RENAME COLUMN capabilities_ms TO capabilities_at;
ALTER TABLE node RENAME COLUMN decommissioned_ms TO decommissioned_at;
ALTER TABLE node RENAME COLUMN nsk_previous_until_ms TO nsk_previous_until;
ALTER TABLE node RENAME COLUMN nsk_since_ms TO nsk_since;
ALTER TABLE node RENAME COLUMN nsk_asked_ms TO nsk_asked_at;
ALTER TABLE node RENAME COLUMN warning_ms TO warning_at;

ALTER TABLE hook_baseline RENAME COLUMN pinned_ms TO pinned_at;
ALTER TABLE hook_baseline RENAME COLUMN approved_ms TO approved_at;

ALTER TABLE integrity_violation RENAME COLUMN detected_ms TO detected_at;
ALTER TABLE integrity_violation RENAME COLUMN acknowledged_ms TO acknowledged_at;

ALTER TABLE action_execution RENAME COLUMN created_ms TO created_at;
ALTER TABLE action_execution RENAME COLUMN updated_ms TO updated_at;
ALTER TABLE action_execution RENAME COLUMN expires_ms TO expires_at;
ALTER TABLE action_execution RENAME COLUMN due_ms TO due_at;

ALTER TABLE action_execution_target RENAME COLUMN created_ms TO created_at;
ALTER TABLE action_execution_target RENAME COLUMN updated_ms TO updated_at;
ALTER TABLE action_execution_target RENAME COLUMN started_ms TO started_at;
ALTER TABLE action_execution_target RENAME COLUMN ended_ms TO ended_at;
ALTER TABLE action_execution_target RENAME COLUMN cancel_requested_ms TO cancel_requested_at;
ALTER TABLE action_execution_target RENAME COLUMN released_ms TO released_at;
ALTER TABLE action_execution_target RENAME COLUMN deliver_by_ms TO deliver_by;
ALTER TABLE action_execution_target RENAME COLUMN expires_ms TO expires_at;
ALTER TABLE action_execution_target RENAME COLUMN upload_until_ms TO upload_until;

ALTER TABLE action_execution_event RENAME COLUMN at_ms TO at;

ALTER TABLE outbox RENAME COLUMN created_ms TO created_at;

ALTER TABLE idempotency_key RENAME COLUMN created_ms TO created_at;
ALTER TABLE idempotency_key RENAME COLUMN expires_ms TO expires_at;

ALTER TABLE audit RENAME COLUMN at_ms TO at;

ALTER TABLE relation_tuple RENAME COLUMN created_ms TO created_at;

ALTER TABLE action_execution_rollout RENAME COLUMN paused_ms TO paused_at;
ALTER TABLE action_execution_rollout RENAME COLUMN ends_ms TO ends_at;

ALTER TABLE output_garbage RENAME COLUMN since_ms TO since;
