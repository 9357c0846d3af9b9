"""Which measurements price a GPU, and how wide the interval of the answer is.

`lookup.py` is the entry point: which GPU's calibration of a kind is taken, how much wider the
interval becomes and which files that rests on. `transfer.py` has errors by kind of transfer;
`relatives.toml` says which GPUs are sources, `lines.toml` which architectures follow which.
`measured_gpus.py` has the defaults of a data sheet: means and lines through measured GPUs.
`intervals.py` has the 90 % intervals.
"""
