"""Layers, networks and loop nests, and the files they are read from."""
