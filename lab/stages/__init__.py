"""Training steps from timed pipeline stages, or from the traced operators of one GPU."""
