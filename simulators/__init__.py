"""The physics: performance models of machine-learning systems as plain numerics.

Each folder with a `simulator.py` is a simulator: something that turns a batch of design points into
a batch of metrics, row by row. None of them knows about sweeps, workers or command lines.
"""
