-- These tables are the only record of what ran where and with what outcome. A step back would have to throw it away.
DO $$
BEGIN
    RAISE EXCEPTION 'migration 12 cannot be undone: it would remove the history of every execution'
        USING ERRCODE = '0A000', HINT = 'Restore a backup that was made before it.';
END
$$;
