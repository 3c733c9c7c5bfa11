"""Servers of our own, for measurements and tests: private, on the loopback, never left behind."""
