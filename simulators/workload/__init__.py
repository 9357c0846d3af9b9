"""What models are made of: operators, the precisions they have, and lists of them.

`llm/` lists the operators of an iteration of a language model and the bytes a replica must hold,
`graphs/` draws whole models, `loop_nest.py` describes a layer for accelerators.
"""
