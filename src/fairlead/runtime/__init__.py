"""What runs jobs: a supervisor, its processes, and the stations a job passes in one of them."""
