"""Write the golden numbers again."""

from __future__ import annotations

import sys

from sweeper import places
from tests.golden import write

for name in sys.argv[1:] or places.spaces():
    write(name)
