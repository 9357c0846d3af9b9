"""Write the golden numbers again."""

from __future__ import annotations

import sys

from tests.golden import questions, write

for name in sys.argv[1:] or questions():
    write(name)
