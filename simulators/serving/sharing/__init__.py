"""Co-location: several models on one GPU by time slicing, MPS or MIG.

No open data set holds the interference of two language models. One model alone on a share of the
SMs is measured; the interference of neighbours is bounded.
"""
