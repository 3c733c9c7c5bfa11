"""Measure a store beside its raw engine, in one run.

Machines are noisy, so nothing here is absolute: floor and Fairlead take turns,
each figure is the median of several rounds, and what counts is the ratio.
"""
