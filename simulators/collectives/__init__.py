"""Collectives: what it takes ranks to exchange and reduce their buffers over a network.

`simulator.py` is the sweeper's door, `price.py` that of the rooms above. `measured.py` knows what
libraries were measured to take; the rooms inside model algorithms on topologies: `closed/` by
formula, `events/` message by message. `traces/` runs whole graphs of operators.
"""
