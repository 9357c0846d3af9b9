"""Separate pools: replicas that only read prompts, and others that decode what those have read.

Zhong et al., "DistServe" (2024); Patel et al., "Splitwise" (2024); Qin et al., "Mooncake" (2024).
"""
