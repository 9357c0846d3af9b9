"""Whole models as graphs of operators: vision, diffusion, encoders, tables, training of decoders.

`families.py` is the entry point: it draws a model by name as a `Graph` (`graph.py`) for a load.
"""
