-- What the migrations of SQLite up to 0012 come to, in the types of PostgreSQL. From here on both have the same numbers.
--
-- Texts compare byte by byte, as they do in SQLite, whatever the locale of the database: pages are cut by them.

CREATE TABLE domain (
    id uuid PRIMARY KEY,
    name text COLLATE "C" NOT NULL UNIQUE,
    -- False admits clients of the published surface, which send no callback token.
    callback_token_required boolean NOT NULL DEFAULT true,
    created_at timestamptz NOT NULL
);

CREATE TABLE project (
    id uuid PRIMARY KEY,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    name text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    UNIQUE (domain_id, name)
);

CREATE TABLE signing_key (
    keyid text COLLATE "C" PRIMARY KEY,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    public_key bytea NOT NULL CHECK (length(public_key) = 32),
    created_at timestamptz NOT NULL,
    retired_at timestamptz
);

CREATE TABLE operator_token (
    id uuid PRIMARY KEY,
    name text COLLATE "C" NOT NULL,
    token_hash bytea NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    created_at timestamptz NOT NULL,
    expires_at timestamptz,
    revoked_at timestamptz,
    domain_id uuid REFERENCES domain (id) ON DELETE RESTRICT,
    created_by text COLLATE "C" NOT NULL DEFAULT 'system',
    rotated_at timestamptz,
    previous_hash bytea CHECK (length(previous_hash) = 32),
    previous_until timestamptz
);
CREATE UNIQUE INDEX operator_token_name_idx ON operator_token (domain_id, name) WHERE revoked_at IS NULL;
CREATE UNIQUE INDEX operator_token_previous_idx ON operator_token (previous_hash) WHERE previous_hash IS NOT NULL;

CREATE TABLE relation_tuple (
    id uuid PRIMARY KEY,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    -- NULL for what concerns the whole domain: the domain itself, and its groups.
    project_id uuid REFERENCES project (id) ON DELETE RESTRICT,
    subject text COLLATE "C" NOT NULL,
    relation text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    UNIQUE (subject, domain_id, relation, resource)
);
CREATE INDEX relation_tuple_domain_idx ON relation_tuple (domain_id, id);

CREATE TABLE bootstrap_token (
    id uuid PRIMARY KEY,
    project_id uuid NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    token_hash bytea NOT NULL UNIQUE CHECK (length(token_hash) = 32),
    labels jsonb NOT NULL,
    uses_max bigint NOT NULL CHECK (uses_max > 0),
    uses bigint NOT NULL DEFAULT 0 CHECK (uses BETWEEN 0 AND uses_max),
    issued_by text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    revoked_at timestamptz
);
CREATE INDEX bootstrap_token_project_idx ON bootstrap_token (project_id, id);

CREATE TABLE node (
    id uuid PRIMARY KEY,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    project_id uuid NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    name text COLLATE "C" NOT NULL,
    hostname text COLLATE "C" NOT NULL,
    machine_id text COLLATE "C" NOT NULL,
    nsk_hash bytea NOT NULL UNIQUE CHECK (length(nsk_hash) = 32),
    bootstrap_token_id uuid NOT NULL REFERENCES bootstrap_token (id) ON DELETE RESTRICT,
    enrollment_id uuid NOT NULL,
    binary_version text COLLATE "C",
    clock_skew_ms bigint,
    created_at timestamptz NOT NULL,
    last_seen_at timestamptz,
    capabilities_at timestamptz,
    decommissioned_at timestamptz,
    nsk_next_hash bytea CHECK (length(nsk_next_hash) = 32),
    nsk_previous_hash bytea CHECK (length(nsk_previous_hash) = 32),
    nsk_previous_until timestamptz,
    nsk_since timestamptz,
    nsk_asked_at timestamptz,
    instance uuid,
    instance_before uuid,
    instance_copy uuid,
    warning text COLLATE "C",
    warning_at timestamptz,
    signing_serial bigint NOT NULL DEFAULT 1,
    -- The same token with the same enrolment is the same node: a lost answer costs nothing.
    UNIQUE (bootstrap_token_id, enrollment_id)
);
CREATE UNIQUE INDEX node_name_idx ON node (project_id, name) WHERE decommissioned_at IS NULL;
CREATE INDEX node_machine_id_idx ON node (domain_id, machine_id);
CREATE UNIQUE INDEX node_nsk_next_idx ON node (nsk_next_hash) WHERE nsk_next_hash IS NOT NULL;
CREATE UNIQUE INDEX node_nsk_previous_idx ON node (nsk_previous_hash) WHERE nsk_previous_hash IS NOT NULL;

CREATE TABLE node_label (
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    key text COLLATE "C" NOT NULL,
    value text COLLATE "C" NOT NULL,
    PRIMARY KEY (node_id, key)
);
CREATE INDEX node_label_key_value_idx ON node_label (key, value, node_id);

CREATE TABLE node_action (
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('builtin', 'hook')),
    digest bytea CHECK (length(digest) = 32),
    manifest text COLLATE "C",
    denied text COLLATE "C",
    PRIMARY KEY (node_id, name),
    CHECK ((kind = 'hook') = (digest IS NOT NULL))
);
CREATE INDEX node_action_name_idx ON node_action (name, node_id);

CREATE TABLE refused_hook (
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    name text COLLATE "C" NOT NULL,
    why text COLLATE "C" NOT NULL,
    PRIMARY KEY (node_id, name)
);

CREATE TABLE hook_baseline (
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    hook text COLLATE "C" NOT NULL,
    digest bytea NOT NULL CHECK (length(digest) = 32),
    pinned_at timestamptz NOT NULL,
    approved_at timestamptz,
    approved_by text COLLATE "C",
    PRIMARY KEY (node_id, hook)
);

CREATE TABLE integrity_violation (
    id uuid PRIMARY KEY,
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE RESTRICT,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    kind text COLLATE "C" NOT NULL CHECK (kind IN ('binary', 'hook', 'host_key')),
    status text COLLATE "C" NOT NULL CHECK (status IN ('open', 'acknowledged', 'resolved')),
    artifact_id text COLLATE "C" NOT NULL,
    detected_by text COLLATE "C" NOT NULL,
    observed bytea,
    expected bytea,
    detected_at timestamptz NOT NULL,
    acknowledged_at timestamptz,
    acknowledged_by text COLLATE "C",
    acknowledge_reason text COLLATE "C"
);
CREATE INDEX integrity_violation_node_idx ON integrity_violation (node_id, kind, artifact_id);

CREATE TABLE action_execution (
    id uuid PRIMARY KEY,
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    project_id uuid NOT NULL REFERENCES project (id) ON DELETE RESTRICT,
    action_name text COLLATE "C" NOT NULL,
    action_kind text COLLATE "C" NOT NULL CHECK (action_kind IN ('builtin', 'hook')),
    parameters jsonb,
    selector text COLLATE "C",
    timeout_seconds bigint NOT NULL CHECK (timeout_seconds > 0),
    terminal_status text COLLATE "C" CHECK (terminal_status IN ('succeeded', 'failed', 'cancelled', 'timeout')),
    -- How many targets are not terminal: the one that brings it to 0 settles the header, without a count.
    live_targets bigint NOT NULL CHECK (live_targets >= 0),
    requested_by text COLLATE "C" NOT NULL,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    deliver_within_seconds bigint CHECK (deliver_within_seconds > 0),
    held_targets bigint NOT NULL DEFAULT 0 CHECK (held_targets >= 0),
    failed_targets bigint NOT NULL DEFAULT 0 CHECK (failed_targets >= 0),
    due_at timestamptz,
    sealed_parameters bytea,
    CHECK (terminal_status IS NULL OR live_targets = 0)
);
CREATE INDEX action_execution_project_keyset_idx ON action_execution (project_id, created_at DESC, id DESC);
CREATE INDEX action_execution_live_by_domain_idx ON action_execution (domain_id) WHERE terminal_status IS NULL;
CREATE INDEX action_execution_live_by_due_idx ON action_execution (due_at) WHERE terminal_status IS NULL;
CREATE INDEX action_execution_held_idx ON action_execution (id) WHERE held_targets > 0;
CREATE INDEX action_execution_action_idx ON action_execution (project_id, action_name, created_at DESC, id DESC);
CREATE INDEX action_execution_status_idx ON action_execution (project_id, terminal_status, created_at DESC, id DESC);
CREATE INDEX action_execution_settled_idx ON action_execution (domain_id, action_name, updated_at)
    WHERE terminal_status IS NOT NULL;

CREATE TABLE action_execution_target (
    execution_id uuid NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE,
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE RESTRICT,
    status text COLLATE "C" NOT NULL CHECK (status IN ('pending', 'ack', 'started', 'succeeded', 'failed', 'cancelled', 'timeout')),
    callback_token_hash bytea NOT NULL CHECK (length(callback_token_hash) = 32),
    exit_code bigint,
    error text COLLATE "C",
    output_ref jsonb,
    output_bytes bigint,
    created_at timestamptz NOT NULL,
    updated_at timestamptz NOT NULL,
    started_at timestamptz,
    ended_at timestamptz,
    cancel_requested_at timestamptz,
    released_at timestamptz,
    deliver_by timestamptz,
    expires_at timestamptz,
    rollout_position bigint,
    output_error text COLLATE "C",
    output_total_bytes bigint,
    upload_until timestamptz,
    PRIMARY KEY (execution_id, node_id)
);
CREATE INDEX action_execution_target_cancel_idx ON action_execution_target (node_id)
    WHERE cancel_requested_at IS NOT NULL;
CREATE INDEX action_execution_target_unconfirmed_idx ON action_execution_target (cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL;
CREATE INDEX action_execution_target_owed_idx ON action_execution_target (node_id)
    WHERE status = 'pending' AND released_at IS NOT NULL;
CREATE INDEX action_execution_target_held_idx ON action_execution_target (execution_id, rollout_position)
    WHERE status = 'pending' AND released_at IS NULL;
CREATE INDEX action_execution_target_node_idx
    ON action_execution_target (node_id, created_at DESC, execution_id DESC);
CREATE INDEX action_execution_target_status_idx ON action_execution_target (execution_id, status);
CREATE INDEX action_execution_target_undelivered_idx ON action_execution_target (execution_id, deliver_by)
    WHERE status = 'pending' AND released_at IS NOT NULL;
CREATE INDEX action_execution_target_asked_idx ON action_execution_target (execution_id, cancel_requested_at)
    WHERE cancel_requested_at IS NOT NULL AND ended_at IS NULL;

CREATE TABLE action_execution_event (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    execution_id uuid NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE,
    node_id uuid NOT NULL,
    from_status text COLLATE "C" NOT NULL,
    to_status text COLLATE "C" NOT NULL,
    -- True: news that came after the invocation was settled. It changed nothing and is kept as evidence.
    late boolean NOT NULL DEFAULT false,
    detail text COLLATE "C",
    at timestamptz NOT NULL
);
CREATE INDEX action_execution_event_execution_idx ON action_execution_event (execution_id, id);

CREATE TABLE action_execution_rollout (
    execution_id uuid PRIMARY KEY REFERENCES action_execution (id) ON DELETE CASCADE,
    -- What was asked for, as it came to for this cohort.
    plan jsonb NOT NULL,
    -- The last place in the order that was released; 0 before the first.
    released_up_to bigint NOT NULL DEFAULT 0,
    paused_at timestamptz,
    paused_by text COLLATE "C",
    -- Why what was held was cancelled.
    stopped text COLLATE "C",
    -- What is held then is cancelled, paused or not.
    ends_at timestamptz NOT NULL,
    CHECK ((paused_at IS NULL) = (paused_by IS NULL))
);

CREATE TABLE outbox (
    id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    event_type text COLLATE "C" NOT NULL CHECK (event_type IN ('action_request', 'action_cancel', 'hook_baseline_updated')),
    node_id uuid NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    execution_id uuid REFERENCES action_execution (id) ON DELETE CASCADE,
    hook text COLLATE "C",
    created_at timestamptz NOT NULL
);
CREATE INDEX outbox_execution_idx ON outbox (execution_id);

CREATE TABLE idempotency_key (
    project_id uuid NOT NULL REFERENCES project (id) ON DELETE CASCADE,
    subject text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL CHECK (length(key) BETWEEN 1 AND 255),
    -- SHA-256 of the request's body, byte for byte.
    body_hash bytea NOT NULL CHECK (length(body_hash) = 32),
    -- The key is claimed before the gates are asked, and so before its execution is written.
    execution_id uuid NOT NULL REFERENCES action_execution (id) ON DELETE CASCADE DEFERRABLE INITIALLY DEFERRED,
    -- What the first answer said of dropped nodes, which is kept nowhere else.
    dropped jsonb NOT NULL DEFAULT '[]',
    created_at timestamptz NOT NULL,
    expires_at timestamptz NOT NULL,
    PRIMARY KEY (project_id, subject, key)
);
CREATE INDEX idempotency_key_expiry_idx ON idempotency_key (expires_at);
CREATE INDEX idempotency_key_execution_idx ON idempotency_key (execution_id);

CREATE TABLE output_garbage (
    object_key text COLLATE "C" NOT NULL,
    bucket text COLLATE "C" NOT NULL,
    since timestamptz NOT NULL,
    PRIMARY KEY (bucket, object_key)
);

CREATE TABLE audit (
    domain_id uuid NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    seq bigint NOT NULL CHECK (seq > 0),
    at timestamptz NOT NULL,
    subject text COLLATE "C" NOT NULL,
    relation text COLLATE "C" NOT NULL,
    resource text COLLATE "C" NOT NULL,
    outcome text COLLATE "C" NOT NULL CHECK (outcome IN ('granted', 'denied', 'permission_denied', 'invariant_violation', 'internal_error')),
    detail text COLLATE "C",
    -- The same as in the refusal that the caller was given.
    correlation_id uuid,
    previous_hash bytea NOT NULL CHECK (length(previous_hash) = 32),
    hash bytea NOT NULL CHECK (length(hash) = 32),
    PRIMARY KEY (domain_id, seq)
);

CREATE TABLE audit_head (
    domain_id uuid PRIMARY KEY REFERENCES domain (id) ON DELETE RESTRICT,
    seq bigint NOT NULL,
    hash bytea NOT NULL CHECK (length(hash) = 32)
);

CREATE TABLE audit_pruned (
    domain_id uuid PRIMARY KEY REFERENCES domain (id) ON DELETE RESTRICT,
    seq bigint NOT NULL CHECK (seq > 0),
    hash bytea NOT NULL CHECK (length(hash) = 32)
);
