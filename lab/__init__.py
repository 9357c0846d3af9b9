"""Measurement beside physics: tables, fits, claims, peers and a profiler; simulators know none."""
