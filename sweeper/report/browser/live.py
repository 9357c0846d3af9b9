"""Write a small HTML page with the progress and the current front of a running sweep.

The page has no script; a meta tag makes the browser reload the file.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from sweeper.query.fronts import Matrix
from sweeper.report.browser.markup import escaped, scrolled
from sweeper.report.watching import Watch

_WIDTH, _HEIGHT, _EDGE = 720, 360, 12
_MOST = 5_000
"""Most designs drawn."""
_ROWS = 20
"""Most designs in the table."""
_STYLE = """\
body{font:16px/1.5 system-ui,sans-serif;max-width:760px;margin:2em auto;padding:0 1em;color:#222}
svg{width:100%;border:1px solid #ccc}circle{fill:#0b6bcb}td,th{padding:0 1em 0 0;text-align:left}
progress{width:100%}.note{color:#555}
@media (prefers-color-scheme:dark){body{background:#181818;color:#ddd}.note{color:#aaa}}"""


def live(watch: Watch, every_s: float, over: str) -> str:
    """Return the page as HTML, which reloads every `every_s` seconds unless `over` is set.

    `over` must be determined before the last `Watch.look`, so that no part is missed.
    """
    answers, progress = watch.answers, watch.progress
    front = progress.front()
    again = "" if over else f'<meta http-equiv="refresh" content="{max(1, every_s):g}">'
    policy = "default-src 'none'; style-src 'unsafe-inline'"
    line = over or progress.line()
    names = list(answers.objectives)
    cells = [
        "".join(
            f"<td>{escaped(answers.scaled(n, v))}</td>" for n, v in zip(names, row, strict=True)
        )
        for row in front[:_ROWS].tolist()
    ]
    head = "".join(f"<th>{escaped(answers.word(n))}</th>" for n in names)
    return f"""\
<!doctype html><html lang="en"><head><meta charset="utf-8">{again}
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width"><title>{escaped(answers.name)}</title>
<style>{_STYLE}</style></head><body>
<h1>{escaped(answers.name)}</h1>
<progress max="{max(progress.total, 1)}" value="{progress.done}"></progress>
<p id="state">{progress.done:,} of {progress.total:,} points; {escaped(line)}</p>
<p class="note">The front: {len(front):,} distinct designs{_axes(watch, names)}.</p>
{_drawn(front)}
{scrolled(head, [f"<tr>{line}</tr>" for line in cells])}
</body></html>
"""


def _axes(watch: Watch, names: Sequence[str]) -> str:
    """Return the caption of the picture."""
    if len(names) < 2:
        return ""
    across, up = (escaped(watch.answers.word(n)) for n in names[:2])
    return f"; x axis: {across}, y axis: {up}, from minimum to maximum"


def _drawn(front: Matrix) -> str:
    """Return an SVG of the first two objectives of a front, on logarithmic axes if positive."""
    if not len(front) or front.shape[1] < 2:
        return ""
    values = front[:: -(-len(front) // _MOST), :2]
    values = np.where((values > 0).all(axis=0), np.log(np.maximum(values, 1e-300)), values)
    low, high = values.min(axis=0), values.max(axis=0)
    place = (values - low) / np.where(high > low, high - low, 1.0)
    x = _EDGE + place[:, 0] * (_WIDTH - 2 * _EDGE)
    y = _HEIGHT - _EDGE - place[:, 1] * (_HEIGHT - 2 * _EDGE)
    dots = "".join(f'<circle cx="{a:.1f}" cy="{b:.1f}" r="3"/>' for a, b in zip(x, y, strict=True))
    return f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="front">{dots}</svg>'
