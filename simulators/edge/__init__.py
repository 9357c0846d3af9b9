"""Latency of networks on edge devices with a few measured latencies: phones, kits and chips.

`architectures.py` makes features of the cells and networks of three search spaces; `device.py`
reads and writes what is known of a device; `simulator.py` is the sweeper's.
"""
