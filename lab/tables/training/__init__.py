"""Measured training steps, systems and layers."""
