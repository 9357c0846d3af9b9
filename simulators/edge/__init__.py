"""Latency of networks on phones, development kits and edge chips, from a few measured latencies."""
