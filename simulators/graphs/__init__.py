"""Whole graphs that are no iteration of a language model: vision, diffusion, training steps.

`price.py` is the entry point. `forward.py` and `backward.py` turn operators into kernels;
`timeline.py` adds up their times and the launches of the host.
"""
