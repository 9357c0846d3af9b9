"""What every simulator stands on: the contract, the errors, names as files, compiled kernels."""
