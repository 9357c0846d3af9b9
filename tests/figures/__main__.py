"""Compare the named figures with today's values, or accept today's."""

from __future__ import annotations

import sys

from sweeper.space import shipped_files
from tests.figures import TOLERANCE, accepted, computed, write

if "--write" in sys.argv[1:]:
    write({name: computed(name) for name in shipped_files.spaces()})
    sys.exit(0)
worst = 0.0
for name in shipped_files.spaces():
    figures = [f for f in accepted() if f.space == name]
    today = computed(name, sorted({f.point for f in figures}))
    for figure in figures:
        now = today[figure.point, figure.metric].value
        change = now / figure.value - 1.0 if figure.value else now
        worst = max(worst, abs(change))
        if abs(change) > TOLERANCE:
            print(f"{figure.name}  {figure.value:.6g} -> {now:.6g}  {change:+.3%}")
print(f"largest relative change {worst:.2g}, tolerance {TOLERANCE:g}")
