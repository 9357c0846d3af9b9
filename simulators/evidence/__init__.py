"""Whose measurements a GPU is priced by, and how sure the answer then is.

`lookup.py` is the door: whose calibration of a kind a GPU takes, how much wider the
interval becomes and which files that rests on. `borrowing.py` has what borrowing costs, by kind;
`relatives.toml` says who may lend, `lines.toml` which architectures follow which.
`boards.py` has what a data sheet alone is taken for: means and lines through all measured boards.
`intervals.py` has the 90 % intervals.
"""
