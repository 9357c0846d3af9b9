"""Which measurements price a GPU, and how wide the interval of the answer is.

`lookup.py` is the entry point: which GPU's calibration of a kind is taken, how much wider the
interval becomes and which files that rests on. `transfer.py` has errors by kind of transfer;
`relatives.toml` says which GPUs are sources, `lines.toml` which architectures follow which.
`boards.py` has what a data sheet alone is taken for: means and lines through all measured GPUs.
`intervals.py` has the 90 % intervals.
"""
