"""Disaggregated serving: separate pools of prefill replicas and decode replicas.

Zhong et al., "DistServe" (2024); Patel et al., "Splitwise" (2024); Qin et al., "Mooncake" (2024).
"""
