"""Peers' own definitions, where ours differ: what replays of their runs need, and nothing else."""
