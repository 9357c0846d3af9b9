"""Results: in the terminal, as an HTML page, as pictures, as files.

`answers` are what a run of a space left behind. `summary` prints them, `tables` prints or writes
any table as `layout` breaks it, `progress` shows a sweep as it runs. `browser` is the report as a
page, `plots` draws pictures, `timeline` a trace; `words` are what columns are called there.
`evidence` is how accurate the simulators behind the results are.
"""
