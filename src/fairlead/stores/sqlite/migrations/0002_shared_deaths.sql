-- How often a job's process died while others ran in it too, since a run of it ended by itself.
ALTER TABLE fairlead_job ADD COLUMN shared_deaths INTEGER NOT NULL DEFAULT 0;
