"""Measured deployments, corrections by a user's own rows, and prediction intervals."""
