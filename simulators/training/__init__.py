"""Training of language models: one step across GPUs, played out from a schedule, and whole runs."""
