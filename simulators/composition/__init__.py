"""From kernels to models: operators, cut across devices, become one iteration of a replica."""
