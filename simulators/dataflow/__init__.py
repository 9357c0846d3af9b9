"""Dataflow: energy and time of loop nests on spatial accelerators, under the best mapping found.

`simulator.py` is the sweeper's door, `price.py` that of the rooms above. `mapping/` knows layers,
loop nests and their files, `access/` how often levels are read and written, `energy/` what that
costs, `search/` is the mapper, `sparsity/` knows zeros.
"""
