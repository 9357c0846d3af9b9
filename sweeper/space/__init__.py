"""Design spaces: the points there are, as a space file or an override describes them.

`space_file` reads a YAML file, which `shipped_files` finds; `axes` the values of its axes. `points`
numbers their combinations. `rules` evaluates constraints and derived columns in the language of
`sql`. `design_space` joins all of them, with the objectives of the space.
"""
