"""Orchestrators, one file each: a function `manifest` writes what starts all replicas."""
