"""Questions to results: fronts, volumes, ranks, sensitivities, probabilities, what to buy.

`pareto` finds the front of a table by the loops of `pareto_kernel`. `hypervolume`, `ranks` and
`uncertainty` say how good and how sure a front is, `sensitivity` which axes matter, `neighbours`
what one step of an axis changes, `planning` which design is cheapest and how many a load needs.
"""
