"""Flags of `ask`, one file per simulator, which import no simulator: help is printed at once."""
