-- Until when the node's daemon gets no work, because it took the place of one whose stream was open: also where control was
-- started anew meanwhile.
ALTER TABLE node ADD COLUMN contested_until INTEGER;
