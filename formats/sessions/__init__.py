"""Recorded sessions of agents, by the kind of their records: hashes of blocks, or texts."""
