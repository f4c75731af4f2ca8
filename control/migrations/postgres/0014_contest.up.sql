-- Until when the node's daemon gets no work, because it took the place of one whose stream was open: whichever service it
-- asks, also one that was started meanwhile.
ALTER TABLE node ADD COLUMN contested_until timestamptz;
