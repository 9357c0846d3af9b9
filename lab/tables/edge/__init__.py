"""Latencies of networks, models and benchmarks on phones, microcontrollers and chips."""
