-- Ids are UUIDs (16 bytes), instants are milliseconds since the epoch, JSON is text, digests and hashes are 32 bytes.

CREATE TABLE domain (
    id                      BLOB PRIMARY KEY NOT NULL,
    name                    TEXT NOT NULL UNIQUE,
    -- 0 admits clients of the published surface, which send no callback token.
    callback_token_required INTEGER NOT NULL DEFAULT 1,
    created_ms              INTEGER NOT NULL
);

CREATE TABLE project (
    id         BLOB PRIMARY KEY NOT NULL,
    domain_id  BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    name       TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (domain_id, name)
);

-- The public half; the private half is a file that only control's own user reads.
CREATE TABLE signing_key (
    keyid      TEXT PRIMARY KEY NOT NULL,
    domain_id  BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    public_key BLOB NOT NULL CHECK (length(public_key) = 32),
    created_ms INTEGER NOT NULL
);

CREATE TABLE operator_token (
    id         BLOB PRIMARY KEY NOT NULL,
    name       TEXT NOT NULL,
    token_hash BLOB NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER,
    revoked_ms INTEGER
);

-- Who may: (subject, relation, resource), as published.
CREATE TABLE relation_tuple (
    id         BLOB PRIMARY KEY NOT NULL,
    subject    TEXT NOT NULL,
    relation   TEXT NOT NULL,
    resource   TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (subject, relation, resource)
);

CREATE TABLE bootstrap_token (
    id         BLOB PRIMARY KEY NOT NULL,
    project_id BLOB NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    token_hash BLOB NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    labels     TEXT NOT NULL,
    uses_max   INTEGER NOT NULL CHECK (uses_max > 0),
    uses       INTEGER NOT NULL DEFAULT 0 CHECK (uses BETWEEN 0 AND uses_max),
    issued_by  TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    expires_ms INTEGER NOT NULL
);

CREATE TABLE node (
    id                BLOB PRIMARY KEY NOT NULL,
    domain_id         BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    project_id        BLOB NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    name              TEXT NOT NULL,
    hostname          TEXT NOT NULL,
    machine_id        TEXT NOT NULL,
    nsk_hash          BLOB NOT NULL UNIQUE CHECK (length(nsk_hash) = 32),
    bootstrap_token_id BLOB NOT NULL REFERENCES bootstrap_token (id) ON DELETE RESTRICT,
    enrollment_id     BLOB NOT NULL,
    binary_version    TEXT,
    clock_skew_ms     INTEGER,
    created_ms        INTEGER NOT NULL,
    last_seen_ms      INTEGER,
    capabilities_ms   INTEGER,
    decommissioned_ms INTEGER,
    -- The same token with the same enrolment is the same node: a lost answer costs nothing.
    UNIQUE (bootstrap_token_id, enrollment_id)
);
-- A name is free again once its node is decommissioned.
CREATE UNIQUE INDEX node_name_idx ON node (project_id, name) WHERE decommissioned_ms IS NULL;
CREATE INDEX node_machine_id_idx ON node (domain_id, machine_id);

CREATE TABLE node_label (
    node_id BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    key     TEXT NOT NULL,
    value   TEXT NOT NULL,
    PRIMARY KEY (node_id, key)
) WITHOUT ROWID;
CREATE INDEX node_label_key_value_idx ON node_label (key, value, node_id);

-- What a node declared last. A hook has the digest that the node saw.
CREATE TABLE node_action (
    node_id  BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    name     TEXT NOT NULL,
    kind     TEXT NOT NULL CHECK (kind IN ('builtin', 'hook')),
    digest   BLOB CHECK (length(digest) = 32),
    manifest TEXT,
    PRIMARY KEY (node_id, name),
    CHECK ((kind = 'hook') = (digest IS NOT NULL))
) WITHOUT ROWID;
CREATE INDEX node_action_name_idx ON node_action (name, node_id);

-- The digest that was first seen, or that an operator approved since.
CREATE TABLE hook_baseline (
    node_id     BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    hook        TEXT NOT NULL,
    digest      BLOB NOT NULL CHECK (length(digest) = 32),
    pinned_ms   INTEGER NOT NULL,
    approved_ms INTEGER,
    approved_by TEXT,
    PRIMARY KEY (node_id, hook)
) WITHOUT ROWID;

CREATE TABLE integrity_violation (
    id          BLOB PRIMARY KEY NOT NULL,
    node_id     BLOB NOT NULL REFERENCES node (id) ON DELETE RESTRICT,
    domain_id   BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    kind        TEXT NOT NULL CHECK (kind IN ('binary', 'hook', 'host_key')),
    status      TEXT NOT NULL CHECK (status IN ('open', 'acknowledged', 'resolved')),
    artifact_id TEXT NOT NULL,
    detected_by TEXT NOT NULL,
    observed    BLOB,
    expected    BLOB,
    detected_ms INTEGER NOT NULL,
    acknowledged_ms INTEGER,
    acknowledged_by TEXT,
    acknowledge_reason TEXT
);
CREATE INDEX integrity_violation_node_idx ON integrity_violation (node_id, kind, artifact_id);

-- The header of a dispatch. Its id is minted by control, so that it can ride the outbox row of the same commit.
CREATE TABLE action_execution (
    id              BLOB PRIMARY KEY NOT NULL,
    domain_id       BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    project_id      BLOB NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    action_name     TEXT NOT NULL,
    action_kind     TEXT NOT NULL CHECK (action_kind IN ('builtin', 'hook')),
    parameters      TEXT,
    selector        TEXT,
    timeout_seconds INTEGER NOT NULL CHECK (timeout_seconds > 0),
    terminal_status TEXT CHECK (terminal_status IN ('succeeded', 'failed', 'cancelled', 'timeout')),
    -- How many targets are not terminal: the one that brings it to 0 settles the header, without a count.
    live_targets    INTEGER NOT NULL CHECK (live_targets >= 0),
    requested_by    TEXT NOT NULL,
    created_ms      INTEGER NOT NULL,
    updated_ms      INTEGER NOT NULL,
    expires_ms      INTEGER NOT NULL,
    CHECK (terminal_status IS NULL OR live_targets = 0)
);
CREATE INDEX action_execution_project_keyset_idx ON action_execution (project_id, created_ms DESC, id DESC);
CREATE INDEX action_execution_live_by_domain_idx ON action_execution (domain_id) WHERE terminal_status IS NULL;
CREATE INDEX action_execution_live_by_expiry_idx ON action_execution (expires_ms) WHERE terminal_status IS NULL;

CREATE TABLE action_execution_target (
    execution_id        BLOB NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE,
    node_id             BLOB NOT NULL REFERENCES node (id) ON DELETE RESTRICT,
    status              TEXT NOT NULL CHECK (status IN ('pending', 'ack', 'started', 'succeeded', 'failed', 'cancelled', 'timeout')),
    callback_token_hash BLOB NOT NULL CHECK (length(callback_token_hash) = 32),
    exit_code           INTEGER,
    error               TEXT,
    output_ref          TEXT,
    output_bytes        INTEGER,
    created_ms          INTEGER NOT NULL,
    updated_ms          INTEGER NOT NULL,
    started_ms          INTEGER,
    ended_ms            INTEGER,
    PRIMARY KEY (execution_id, node_id)
) WITHOUT ROWID;
-- What a node is owed when it connects.
CREATE INDEX action_execution_target_owed_idx ON action_execution_target (node_id) WHERE status = 'pending';

-- Append-only: rows are never changed, and go only with their execution.
CREATE TABLE action_execution_event (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    execution_id BLOB NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE,
    node_id      BLOB NOT NULL,
    from_status  TEXT NOT NULL,
    to_status    TEXT NOT NULL,
    -- 1: news that came after the invocation was settled. It changed nothing and is kept as evidence.
    late         INTEGER NOT NULL DEFAULT 0,
    detail       TEXT,
    at_ms        INTEGER NOT NULL
);
CREATE INDEX action_execution_event_execution_idx ON action_execution_event (execution_id, id);

-- What is to be put on nodes' streams, written in the commit that decides it. A row only makes delivery prompt: what
-- a node is owed is decided by the state of its targets.
CREATE TABLE outbox (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    event_type   TEXT NOT NULL CHECK (event_type IN ('action_request', 'hook_baseline_updated')),
    node_id      BLOB NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    execution_id BLOB REFERENCES action_execution (id) ON DELETE CASCADE,
    hook         TEXT,
    created_ms   INTEGER NOT NULL
);
