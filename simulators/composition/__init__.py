"""From kernels to models: operators, cut across devices, become one iteration of a replica.

`price.py` is the door for the floors above, about a `Replica` as `replica.py` describes it.
"""
