"""The values and decisions of Fairlead: pure, no I/O, no event loop, no driver."""
