-- What is kept of an invocation against its end, whoever asks whether there is room for more of it.
CREATE INDEX action_execution_event_late_idx ON action_execution_event (execution_id, node_id) WHERE late;
