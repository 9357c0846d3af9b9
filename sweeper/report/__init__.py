"""What is told of results: in the terminal, as an HTML page, as pictures, as files.

`answers` are what a run of a space left behind. `summary` prints them, `tables` prints or writes
any table, `progress` shows a sweep as it runs. `page` makes the HTML report of what `content` says
and `columns` packs; `plots` draws pictures, `timeline` a trace. `evidence` is how accurate the
simulators behind the results are.
"""
