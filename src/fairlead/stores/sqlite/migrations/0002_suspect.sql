-- A job whose process died while others ran in it too; it runs alone the next time.
ALTER TABLE fairlead_job ADD COLUMN suspect INTEGER NOT NULL DEFAULT 0;
