"""What the queue can say about itself: why a job waits, and what is wrong with a set-up."""
