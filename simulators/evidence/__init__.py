"""Whose measurements a GPU is priced by, and how sure the answer then is.

`lookup.py` is the door: which board's calibration of a kind a GPU takes, how much wider the
interval becomes and which files that rests on. `relatives.toml` says who lends to whom.
`boards.py` has what a data sheet alone is taken for: means and lines through all measured boards.
`intervals.py` has the 90 % intervals.
"""
