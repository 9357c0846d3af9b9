"""Collectives: time for ranks to exchange and reduce buffers over a network.

The sweeper calls `simulator.py`; other packages call `price.py`. `measured.py` has measured times
of libraries, `library_models.py` predicts unmeasured ones, `phase_model.py` is the formula of an
algorithm on a topology, `events/` simulates its messages, `traces/` runs graphs of operators.
"""
