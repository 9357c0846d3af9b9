"""How long one operator takes on one GPU, and what it draws.

`price.py` is the door for the rooms above, with `energy.py` for watts; `simulator.py` is the
sweeper's. `families/` has the formulas, a file a family of operators. `levels.py` says what is
known of a GPU, as `profile.py` (sustained rates) and `entries.py` (fitted numbers of one kernel);
`tiling.py`, `monotone_correction.py` and `interpolation_grid.py` are what formulas are made of.
"""
