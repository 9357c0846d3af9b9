"""Dataflow: energy and time of loop nests on spatial accelerators, under the best mapping found.

The sweeper calls `simulator.py`; other packages call `price.py`. `mapping.py` defines a mapping,
`access.py` counts its reads and writes of memory levels, `evaluation.py` their energy and cycles,
`search/` is the mapper, `sparsity.py` models zeros in operands, `closed_form.py` needs no mapping.
"""
