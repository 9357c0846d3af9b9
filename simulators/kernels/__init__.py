"""Latency and power of one operator on one GPU.

`price.py` (latency) and `energy.py` (power) are the entry points for other packages; `simulator.py`
is the entry point of the sweeper. `families/` has one file of formulas per family of operators.
`levels.py` returns the calibration of a GPU as `profile.py` (sustained rates) and `entries.py`
(fitted numbers of one kernel). Formulas are built from `tiling.py`, `monotone_correction.py` and
`interpolation_grid.py`.
"""
