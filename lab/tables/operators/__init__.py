"""Measured operators of recent models: indexers, hyper-connections, experts after DeepEP."""
