"""Write the golden numbers again."""

from __future__ import annotations

import sys

from sweeper.space import shipped_files
from tests.golden import write

for name in sys.argv[1:] or shipped_files.spaces():
    write(name)
