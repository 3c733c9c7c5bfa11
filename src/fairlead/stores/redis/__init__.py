"""Jobs in Redis: memory speed, on one server or on a cluster."""
