"""Compare two builds of Fairlead, without being fooled by the machine: `make bench-compare`.

The base is a commit, the new build is the working tree. Both are measured in turns (base, new,
new, base), so that a machine that is busy for a while slows both. What decides is not a figure
but the interval in which the true ratio lies. What goes over the wire is counted beside that.
"""
