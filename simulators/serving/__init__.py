"""LLM serving: requests in, latency, throughput, cost and energy of a deployment out.

Entry point: `simulator.py`; `point.py` lists the axes, `run.py` simulates one design. Packages:
`demand` (requests), `engine` (the event loop), `prices` (iteration times), `steady` (the closed
form), `answer` (metrics and reports), `schedulers` and `routers` (one policy a file).
"""
