"""Jobs in this process's memory: for tests and the simulator, and the reference for every store.

The claim runs the selection rule as it is. Nothing survives the process, and
nothing is faked: leases, fences, parking and audit work as in the other stores.
"""
