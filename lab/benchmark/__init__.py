"""A dated benchmark of performance predictors: tasks, splits, entries, scores and baselines."""
