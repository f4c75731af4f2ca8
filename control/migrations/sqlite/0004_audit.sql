-- Who asked for what, and what came of it: one hash chain per domain. Rows are only ever appended.
CREATE TABLE audit (
    domain_id      BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    seq            INTEGER NOT NULL CHECK (seq > 0),
    at_ms          INTEGER NOT NULL,
    subject        TEXT NOT NULL,
    relation       TEXT NOT NULL,
    resource       TEXT NOT NULL,
    outcome        TEXT NOT NULL
                   CHECK (outcome IN ('granted', 'denied', 'permission_denied', 'invariant_violation', 'internal_error')),
    detail         TEXT,
    -- The same as in the refusal that the caller was given.
    correlation_id BLOB,
    previous_hash  BLOB NOT NULL CHECK (length(previous_hash) = 32),
    hash           BLOB NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (domain_id, seq)
) WITHOUT ROWID;

-- The end of each chain, so that rows cut off there are missed too.
CREATE TABLE audit_head (
    domain_id BLOB PRIMARY KEY NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    seq       INTEGER NOT NULL,
    hash      BLOB NOT NULL CHECK (length(hash) = 32)
) WITHOUT ROWID;
