"""Write the golden numbers again."""

from __future__ import annotations

import sys

from sweeper.space import shipped_files
from tests.golden import write

ASKED = [name for name, file in shipped_files.spaces().items() if file.parent.name == "spaces"]

for name in sys.argv[1:] or ASKED:
    write(name)
