"""Formulas of time, FLOPs and memory traffic: one file per family of operators.

`family.py` has what all families share: the interface, and the fitted constants of one kernel.
"""
