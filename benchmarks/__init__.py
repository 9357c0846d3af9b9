"""What things cost, in CPU-seconds: `python -m benchmarks.NAME [--json]` prints one table each."""
