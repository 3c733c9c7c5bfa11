-- Keep what ended for so long at least, whatever keep= workers have; null leaves it to them.
CREATE OR REPLACE FUNCTION retain(period interval, who text DEFAULT session_user) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = {schema}, pg_temp
AS $$
BEGIN
    -- 2^60 microseconds are a little more.
    IF date_part('epoch', period) NOT BETWEEN 0 AND 36000 * 31557600.0 THEN
        RAISE 'what ended is kept for 0 s to 36,000 years, not for %; NULL leaves it to the workers',
            period USING ERRCODE = 'JQ001';
    END IF;
    INSERT INTO retention VALUES (0, (date_part('epoch', period) * 1000000)::bigint)
    ON CONFLICT ((true)) DO UPDATE SET keep = excluded.keep;
    PERFORM note(
        jsonb_build_array(
            gen_random_uuid(), who, 'retain', coalesce(period::text, 'as workers say')
        ),
        0, stamp()
    );
END $$;
