"""From a few rows of one's own to a board that counts as measured.

`carried.py` takes kernels timed on one GPU to another; `learning.py` says what more rows would
give; `calibrate.py` and `transfer.py` are what the commands of these names load.
"""
