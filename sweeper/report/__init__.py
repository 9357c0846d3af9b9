"""Present results in the terminal, as an HTML page, as pictures and as files.

`answers` reads the results of a run. `summary` prints them, `tables` prints or writes tables, and
`progress` shows a running sweep. `browser` writes the HTML report, `plots` draws pictures, and
`evidence` reads the stored accuracy of the simulators.
"""
