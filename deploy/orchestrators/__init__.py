"""Orchestrators, one file each: `manifest` writes the deployment of all replicas."""
