"""How long a network takes on a phone, a board or a chip of which a few latencies were measured.

`architectures.py` makes features of the cells and networks of three search spaces; `device.py`
reads and writes what is known of a device; `simulator.py` is the sweeper's.
"""
