"""Several models on one GPU: what of it each gets, and how busy the others keep it.

No open table holds what two language models cost each other. What is measured is one model alone on
a share of the SMs; what others add is bounded.
"""
