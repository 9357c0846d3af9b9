"""The event loop of a service: admission, KV cache, batches, skipping ahead.

`service.py` is the entry point: it runs requests through replicas. `replica.py` names the columns
of the state that schedulers and routers read.
"""
