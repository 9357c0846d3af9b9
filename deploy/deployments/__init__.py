"""Deployments, one file per simulator: write the command or manifest of a design."""
