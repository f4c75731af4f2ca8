-- What a node's own policy forbids; the column manifest holds the whole declaration of an action.
ALTER TABLE node_action ADD COLUMN denied TEXT;

-- Files of a node's hooks directory that it takes for no hooks, and why.
CREATE TABLE refused_hook (
    node_id BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    name    TEXT NOT NULL,
    why     TEXT NOT NULL,
    PRIMARY KEY (node_id, name)
) WITHOUT ROWID;

-- The column parameters holds what may be shown. What may not lies here, sealed, until the execution settles.
ALTER TABLE action_execution ADD COLUMN sealed_parameters BLOB;
