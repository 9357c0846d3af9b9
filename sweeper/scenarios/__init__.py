"""Questions that practitioners ask, each a space of a few points with figures it must answer.

`scenario.py` reads a file of `spaces/scenarios/` and answers it; `board.py` shows all of them:
supported, plausible, how sure.
"""
