"""Latency and energy of one iteration of a replica, from operators partitioned across devices.

`price.py` is the entry point for other packages; `replica.py` defines its argument, a `Replica`.
"""
