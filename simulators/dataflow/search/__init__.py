"""The mapper: objective, constraints, and the search among mappings."""
