"""Jobs in PostgreSQL, for any number of machines."""
