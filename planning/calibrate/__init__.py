"""Calibrations from a user's own measurements: a GPU, a phone or a deployment from a few rows.

`kernels.py` fits a GPU to timed fp32 operators, `transfer.py` predicts the times of one GPU from
those of another, `edge.py` fits an edge device to latencies of networks, `deployment.py` and
`passes.py` fit a serving runtime to measured deployments and forward passes, and `logs.py` reads
deployments from logs of load tests. `sweeper calibrate` prints what these modules return.
"""
