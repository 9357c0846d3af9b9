"""How often each level is read and written: counted exactly, or extrapolated as Timeloop does."""
