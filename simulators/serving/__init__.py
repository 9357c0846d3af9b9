"""LLM serving: requests in, latency, throughput, cost and energy of a deployment out.

`simulator.py` is the door, `point.py` lists the axes, `run.py` simulates one design. Rooms inside:
`demand` (requests), `engine` (the event loop), `prices` (iteration times), `steady` (the closed
form), `answer` (metrics and reports), `schedulers` and `routers` (one policy a file).
"""
