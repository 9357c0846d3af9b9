"""Queries on results: Pareto fronts, analyses, scenarios and probabilities.

`pareto` finds the front of a table, `fronts` the front of a matrix. `analysis` computes
sensitivities, neighbours, cheapest designs and replicas; `scenarios` separates scenarios and
applies price lists; `uncertainty` computes probabilities from prediction intervals.

`results` are always rows as `Store.scan` returns them; only feasible rows count. `where` is an SQL
condition on rows, and `objectives` map a column to `min` or `max`. An unknown column and an invalid
condition raise `UserError`.
"""
