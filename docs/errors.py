"""Write the pages about the error of a composed prediction: `python -m docs.errors`.

`docs/explanation/composed_question.md` shows `explain --errors` of one design. The tables between
the marks of `docs/explanation/method.md` show the rules of composition on measured data.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docs.reference import table
from lab.fits.forward_passes import PassConfiguration, configurations
from lab.scenarios import find
from simulators.composition.uncertainty import INTERVALS_CALIBRATION, HalfWidth, interval_s
from simulators.core.calibration import read_calibration, reference_folder
from simulators.core.errors import UserError
from sweeper.__main__ import main
from sweeper.report.evidence import stored

FOLDER = Path(__file__).resolve().parent / "explanation"
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"

SCENARIO = "I2.4"
"""The scenario whose first design the page shows."""

WIDTH = "120"
"""Columns of the terminal that the page shows."""

OVERLOAD = 64
"""Requests per second that overload its deployment."""


def composed_page() -> str:
    """Return the page: what `explain --errors` prints about a scenario's design."""
    [scenario] = find([SCENARIO])
    axes = {name: axis[0] for name, axis in scenario.spaces[""].axes.items()}
    parts = [
        "# Error of one composed question",
        "What `explain --errors` prints about the deployment of "
        f"`sweeper-lab scenarios {SCENARIO}`, at its load and overloaded. `python -m docs.errors` "
        "writes this page.",
        f"> {scenario.title}",
        "Below saturation every request is answered: throughput equals the load, and errors of the "
        "layers do not affect it. The squared logarithm of an interval's end is a sum over layers "
        "([how errors compose](method.md)). The error of the engine is one fitted number, which "
        "host, scheduler and client share in proportion to the squares of their seconds.",
        *(_explained({**axes, "qps": qps}) for qps in (axes["qps"], OVERLOAD)),
        "Kernels are judged together with the chip they run on, so the chip has no layer of its "
        "own. Numbers transferred from other kernels or GPUs widen the first layer.",
    ]
    return "\n\n".join(parts) + "\n"


def _explained(axes: Mapping[str, Any]) -> str:
    """Return the commands for a design and what the last one prints, as Markdown."""
    space = {"simulator": "serving", "axes": dict(axes)}
    os.environ["COLUMNS"] = WIDTH
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        Path("composed.yaml").write_text(json.dumps(space), encoding="utf-8")
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["+space=composed.yaml", "engine=inline", "plot=false"])
            printed.truncate(printed.seek(0))
            main(["explain", "composed", "knee", "--errors"])
    return f"## {axes['qps']:g} requests per second\n\n```text\n{printed.getvalue().rstrip()}\n```"


def rules() -> str:
    """Return the coverage of intervals of passes by each rule, and from layer to layer."""
    reference = reference_folder()
    if reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE")
    known = configurations(reference)
    gpus = dict.fromkeys(one.gpu for one in known)
    judged = [(gpu, [one for one in known if one.gpu == gpu]) for gpu in gpus]
    return "\n\n".join(
        [
            table(
                ("GPU", "passes", *RULES, "90 % of errors are within"),
                [_coverage_on(gpu, many) for gpu, many in judged],
            ),
            table(("from", "to", "nominal", "covered"), _coverages()),
        ]
    )


RULES = ("all kernels together", "families by squares", "with the unexplained share")


def _coverage_on(gpu: str, many: Sequence[PassConfiguration]) -> tuple[str, ...]:
    """Return the mean half-width and coverage by each rule, and the 90th percentile of errors."""
    cells = []
    for rule in RULES:
        ends = [_interval(one, rule) for one in many]
        held = [lo <= one.measured_s <= hi for one, (lo, hi) in zip(many, ends, strict=True)]
        wide = [(hi - lo) / 2.0 / one.predicted_s for one, (lo, hi) in zip(many, ends, strict=True)]
        cells.append(f"±{np.mean(wide):.0%} covers {np.mean(held):.0%}")
    off = np.quantile([abs(one.off_share) for one in many], 0.9)
    return gpu, str(len(many)), *cells, f"±{off:.0%}"


def _interval(one: PassConfiguration, rule: str) -> tuple[float, float]:
    if rule != RULES[0]:
        known, new = read_calibration(INTERVALS_CALIBRATION)["unexplained"].values()
        share = float(known if one.is_known else new)
        return one.interval_s(share if rule == RULES[2] else 0.0)
    together = {"all": sum(one.half_widths.values(), HalfWidth())}
    lo_s, hi_s = interval_s(one.predicted_s, together, 0.0)
    return float(lo_s), float(hi_s)


LINES = (
    ("kernels", "passes", "composition", r"composition/interval, (.+) left out"),
    ("passes", "deployments", "serving", r"deployments (T...) within intervals"),
    (
        "passes, GPU kernels hidden",
        "deployments",
        "serving",
        r"deployments (T...), kernels of the GPU unmeasured, all: within intervals",
    ),
)
"""Checks of the coverage of one layer's intervals on measurements of the next layer."""


def _coverages() -> Iterator[tuple[str, ...]]:
    known = stored()
    for below, above, package, pattern in LINES:
        for check in known.get(package, ()):
            if (found := re.fullmatch(pattern, check.name)) and check.value is not None:
                yield f"{below}", f"{above}, {found[1]}", "90 %", f"{check.value:.0f} %"


def method_page(text: str) -> str:
    """Return the page of the method with its tables brought up to date."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n{rules()}\n{END}{rest.partition(END)[2]}"


def pages() -> Iterator[tuple[Path, str]]:
    """Yield both pages, and what they say."""
    yield FOLDER / "composed_question.md", composed_page()
    method = FOLDER / "method.md"
    yield method, method_page(method.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for file, text in pages():
        file.write_text(text, encoding="utf-8")
        print(file.relative_to(FOLDER.parents[1]))
