"""Times of collectives by formula: their phases, what each takes alone, and how chunks queue."""
