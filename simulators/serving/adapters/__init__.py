"""Many low-rank adapters of one model: which requests want which, what they take and delay."""
