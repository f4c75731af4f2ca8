-- Why an output that there is has not come; and all that the action wrote, where the node's limit cut some of it out.
ALTER TABLE action_execution_target ADD COLUMN output_error TEXT;
ALTER TABLE action_execution_target ADD COLUMN output_total_bytes INTEGER;
