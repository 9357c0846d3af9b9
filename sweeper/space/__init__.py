"""Design spaces: which points there are, and what a file or an override says of them.

`notation` reads the values of an axis, `factors` the axes of a space, `space_file` a YAML file and
`shipped_files` finds it. `product` numbers the combinations, `spans` are ranges of such numbers.
`rules` evaluate constraints and derived columns, whose language is in `sql`; `design_space` joins
them all. `objectives` are what a space wants of its results.
"""
