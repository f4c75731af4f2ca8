-- Nothing would be lost, but the release that this belongs to could not run any more, and no release steps back.
DO $$
BEGIN
    RAISE EXCEPTION 'migration 15 cannot be undone: migrations only go forward'
        USING ERRCODE = '0A000', HINT = 'The release before it runs with the schema as it is.';
END
$$;
