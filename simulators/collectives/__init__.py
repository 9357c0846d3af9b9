"""Collectives: time for ranks to exchange and reduce buffers over a network.

The sweeper calls `simulator.py`; other packages call `price.py`. `measured.py` reads measured times
of libraries; the packages inside model algorithms on topologies: `closed/` by formula, `events/`
message by message. `traces/` runs whole graphs of operators.
"""
