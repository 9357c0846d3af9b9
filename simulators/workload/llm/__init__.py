"""Language models: the operators of one iteration of a replica, and the memory it needs.

`transformer.py` is the entry point: it lists the operators of a `Step`, split by `parallelism.py`.
"""
