"""Dataflow: energy and time of loop nests on spatial accelerators, under the best mapping found.

The sweeper calls `simulator.py`; other packages call `price.py`. `mapping/` has layers, loop nests
and their files, `access/` counts reads and writes of memory levels, `energy/` their energy and
cycles, `search/` is the mapper, `sparsity/` models zeros in operands.
"""
