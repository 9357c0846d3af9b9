"""LoRA adapters of one model: popularity, cost of adapter products, and loading from the host."""
