"""Whole graphs that are no iteration of a language model: vision, diffusion, training steps.

`price.py` is the door. `forward.py` and `backward.py` turn operators into kernels, `timeline.py`
adds their times up under a host that launches them.
"""
