"""Which measurements price a GPU, and how wide the prediction interval is.

`lookup.py` is the entry point: the GPU whose calibration is used, the widened interval and the
files behind it. `transfer.py` has the error of each kind of transfer; `relatives.toml` lists the
allowed sources, `lines.toml` the order of architectures. `default_rates.py` derives rates from a
data sheet. `intervals.py` has the 90 % prediction intervals.
"""
