"""A benchmark of prediction: anybody's figures, scored on rows that were measured in public.

`tasks/` has one file for each kind of rows, `entries/` one for each tool whose predictions are in
the reference folder, `score.py` the figures; the layout of a file of one's own is in
docs/predictions.md.
"""
