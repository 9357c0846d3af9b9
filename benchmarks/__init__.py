"""Benchmarks in CPU-seconds: `python -m benchmarks.NAME [--json]` prints one table."""
