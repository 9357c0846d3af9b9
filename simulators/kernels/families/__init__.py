"""Formulas of time, work and traffic: one file a family of operators, each with its `FAMILY`.

`family.py` says what a family offers; `fused.py` has the forms that attention and experts are
fitted with, `tensor_cores.py` the kinds of products and whose rates they run by.
"""
