"""The commands of the command line: each reads its flags, asks the other rooms and prints.

`run` sweeps and plans what `overrides` compose; `ask` makes a sweep of a question by flags. Of a
sweep that has been run, `pareto`, `query`, `show`, `explain`, `compare`, `export` and `report`
answer questions. `verify` and `validate` check results and simulators, `schema` serves editors.
"""
