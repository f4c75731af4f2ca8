-- Which execution a key of a caller led to. Written in the commit of that execution: the two are there together or not
-- at all, and the primary key is what makes a second execution under one key impossible.
CREATE TABLE idempotency_key (
    project_id   BLOB NOT NULL REFERENCES project (id) ON DELETE CASCADE,
    subject      TEXT NOT NULL,
    key          TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 of the request's body, byte for byte.
    body_hash    BLOB NOT NULL CHECK (length(body_hash) = 32),
    -- The key is claimed before the gates are asked, and so before its execution is written.
    execution_id BLOB NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    -- What the first answer said of dropped nodes, which is kept nowhere else.
    dropped      TEXT NOT NULL DEFAULT '[]',
    created_ms   INTEGER NOT NULL,
    expires_ms   INTEGER NOT NULL,
    PRIMARY KEY (project_id, subject, key)
) WITHOUT ROWID;
CREATE INDEX idempotency_key_expiry_idx ON idempotency_key (expires_ms);
-- What an execution takes with it when it goes.
CREATE INDEX idempotency_key_execution_idx ON idempotency_key (execution_id);
