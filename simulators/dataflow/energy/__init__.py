"""Energy, cycles and area from counts, an accelerator and the technology table."""
