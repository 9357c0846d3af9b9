"""Language models: the operators of one iteration of a replica, and the memory it needs.

`transformer.py` is the door: it lists the operators of a `Step`, cut as `parallelism.py` says.
"""
