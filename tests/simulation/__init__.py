"""The real runtime on a virtual clock, with faults drawn from a seed; see `world.py`."""
