"""Measurements become calibrations: a file each, run by `sweeper-lab fit NAME`.

`driver.py` reads the arguments, writes the files and prints the errors on held-out rows.
"""
