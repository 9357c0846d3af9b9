"""Training of language models: one step across GPUs under a pipeline schedule, and whole runs."""
