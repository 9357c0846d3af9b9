"""Fits of accelerators: published chips, and devices known by their data sheets."""
