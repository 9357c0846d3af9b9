"""Latencies of networks, models and benchmarks on phones, boards and chips."""
