"""Networks on chips of several cores: layers on cores, transfers between them, one DRAM port."""
