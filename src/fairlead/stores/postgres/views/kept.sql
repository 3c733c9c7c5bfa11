-- From when on what ended is kept. An instant that is still to come, or none, is damage and hides nothing.
CREATE OR REPLACE VIEW kept AS
SELECT coalesce(max(before), 0) AS since FROM retention WHERE before <= stamp() + 86400000000;
