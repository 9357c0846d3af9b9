"""Workloads: operators, precisions, and the operators of models.

`llm/` lists the operators of an iteration of a language model and the bytes a replica must hold,
`graphs/` draws whole models, `loop_nest.py` describes a layer for accelerators.
"""
