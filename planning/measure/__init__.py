"""Times kernels on this machine's GPU with PyTorch: which calls, how they are timed, one file."""
