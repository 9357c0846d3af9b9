"""Simulators for measuring the overhead of sweeps: one very fast, one slow."""
