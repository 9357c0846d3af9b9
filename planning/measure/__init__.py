"""Time kernels on this machine's GPU with PyTorch."""
