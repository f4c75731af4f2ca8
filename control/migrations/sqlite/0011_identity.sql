-- Node keys that are changed without a gap. A new one waits beside the one that counts until the node has used it; the
-- one before counts a little longer, for requests that were under way.
ALTER TABLE node ADD COLUMN nsk_next_hash BLOB CHECK (length(nsk_next_hash) = 32);
ALTER TABLE node ADD COLUMN nsk_previous_hash BLOB CHECK (length(nsk_previous_hash) = 32);
ALTER TABLE node ADD COLUMN nsk_previous_until_ms INTEGER;
-- Since when the one that counts does; NULL since the enrolment.
ALTER TABLE node ADD COLUMN nsk_since_ms INTEGER;
-- When an operator asked for a new one that has not been used yet.
ALTER TABLE node ADD COLUMN nsk_asked_ms INTEGER;
CREATE UNIQUE INDEX node_nsk_next_idx ON node (nsk_next_hash) WHERE nsk_next_hash IS NOT NULL;
CREATE UNIQUE INDEX node_nsk_previous_idx ON node (nsk_previous_hash) WHERE nsk_previous_hash IS NOT NULL;

-- The daemon that control takes for the node's, the one that it followed, and the last one that was found to be a copy.
ALTER TABLE node ADD COLUMN instance BLOB;
ALTER TABLE node ADD COLUMN instance_before BLOB;
ALTER TABLE node ADD COLUMN instance_copy BLOB;
-- What an operator should know of the node's identity; gone once its key was changed.
ALTER TABLE node ADD COLUMN warning TEXT;
ALTER TABLE node ADD COLUMN warning_ms INTEGER;

-- A key that signs nothing any more, but for the news of those that do.
ALTER TABLE signing_key ADD COLUMN retired_ms INTEGER;
-- The set of signing keys that the node has confirmed; every change of the keys makes the number larger by one.
ALTER TABLE node ADD COLUMN signing_serial INTEGER NOT NULL DEFAULT 1;
