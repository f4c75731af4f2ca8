-- Who may, managed through the API: tokens of a domain that can be rotated and revoked, and tuples of a domain.

ALTER TABLE operator_token ADD COLUMN domain_id BLOB REFERENCES domain (id) ON DELETE RESTRICT;
ALTER TABLE operator_token ADD COLUMN created_by TEXT NOT NULL DEFAULT 'system';
ALTER TABLE operator_token ADD COLUMN rotated_ms INTEGER;
-- The secret before the last rotation, and until when it still counts.
ALTER TABLE operator_token ADD COLUMN previous_hash BLOB CHECK (length(previous_hash) = 32);
ALTER TABLE operator_token ADD COLUMN previous_until_ms INTEGER;
UPDATE operator_token SET domain_id = (SELECT id FROM domain ORDER BY id LIMIT 1);
-- A name is free again once its token is revoked.
CREATE UNIQUE INDEX operator_token_name_idx ON operator_token (domain_id, name) WHERE revoked_ms IS NULL;
CREATE UNIQUE INDEX operator_token_previous_idx ON operator_token (previous_hash) WHERE previous_hash IS NOT NULL;

ALTER TABLE bootstrap_token ADD COLUMN revoked_ms INTEGER;
CREATE INDEX bootstrap_token_project_idx ON bootstrap_token (project_id, id);

-- A tuple belongs to the domain of its resource, and a group to the domain that made it: what one tenant says of a group
-- counts in no other.
CREATE TABLE relation_tuple_of_domain (
    id         BLOB PRIMARY KEY NOT NULL,
    domain_id  BLOB NOT NULL REFERENCES domain (id) ON DELETE RESTRICT,
    -- NULL for what concerns the whole domain: the domain itself, and its groups.
    project_id BLOB REFERENCES project (id) ON DELETE RESTRICT,
    subject    TEXT NOT NULL,
    relation   TEXT NOT NULL,
    resource   TEXT NOT NULL,
    created_ms INTEGER NOT NULL,
    UNIQUE (subject, domain_id, relation, resource)
);
INSERT INTO relation_tuple_of_domain (id, domain_id, subject, relation, resource, created_ms)
SELECT id, (SELECT id FROM domain ORDER BY id LIMIT 1), subject, relation, resource, created_ms FROM relation_tuple;
DROP TABLE relation_tuple;
ALTER TABLE relation_tuple_of_domain RENAME TO relation_tuple;
CREATE INDEX relation_tuple_domain_idx ON relation_tuple (domain_id, id);
