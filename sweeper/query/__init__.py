"""Questions to results: fronts, volumes, ranks, sensitivities, probabilities, what to buy.

`pareto` finds the front of a table by the loops of `fronts`. `hypervolume`, `ranks` and
`uncertainty` say how good and how sure a front is, `sensitivity` which axes matter, `neighbours`
what one step of an axis changes, `planning` which design is cheapest and how many a load needs.

`results` are always rows of metrics as `Store.scan` returns them, of which the feasible ones count;
`where` is an SQL condition that rows must meet, and `objectives` go from column to `min` or `max`.
A column that is not there, or a condition that is none, is a `UserError`.
"""
