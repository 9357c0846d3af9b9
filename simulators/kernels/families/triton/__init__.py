"""Attention written in Triton, whose blocks are of few rows and whose steps wait."""
