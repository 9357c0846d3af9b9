"""Times this machine's GPU, or compares our answers with what was timed on it.

The door is `python -m lab.profiler`: `shapes.py` says which calls, `torch_backend.py` times them
with PyTorch, `compare.py` prints how far off we are.
"""
