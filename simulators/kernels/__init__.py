"""Latency and power of one operator on one GPU.

`price.py` (latency) and `energy.py` (power) are the entry points for other packages; `simulator.py`
is the entry point of the sweeper. `families/` has one file of formulas per family of operators.
`levels.py` returns the rates of a GPU (`profile.py`) at a level of information. Formulas are built
from `tiling.py` and `corrections.py`.
"""
