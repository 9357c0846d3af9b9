"""Write the pages about the error of a composed prediction: `python -m docs.errors`.

`docs/explanation/composed_question.md` answers one question over all layers, with each layer's
share of the error. The tables between the marks of `docs/explanation/method.md` show the rules of
composition on measured data.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from docs.error_layers import LAYERS, Squares, band_of, error_layers
from docs.evidence import answer
from docs.reference import table
from lab.fits.intervals.pass_intervals import Configuration, configurations
from simulators.composition.intervals import CALIBRATION, HalfWidth, interval_s
from simulators.core.calibration import read_calibration, reference_folder
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.serving.prices.iteration_table import EVERYDAY
from sweeper.report.evidence import stored
from sweeper.report.shares import in_words, shares_of_row

FOLDER = Path(__file__).resolve().parent / "explanation"
BEGIN, END = "<!-- rules: begin -->", "<!-- rules: end -->"

QUESTION = (
    "What throughput will Llama-2-70B achieve on 32×H100 with tensor parallelism under "
    "Sarathi-Serve at QPS 8?"
)
DESIGN: dict[str, Any] = {
    "model": "llama2_70b",
    "gpu": "h100_sxm",
    "tp": 8,
    "replicas": 4,
    "scheduler": "sarathi",
    "chunk_size": 512,
    "prompt_tokens": 1024,
    "output_tokens": 512,
    "requests": 1000,
    "dtype": "fp16",
}
SEEDS = range(42, 54)
OVERLOAD = 64.0
"""Requests a second that are more than any such deployment bears."""

DEMAND = "demand"
NINE_OF_TEN = 1.645
"""Standard deviations that nine of ten draws lie within."""

NAMES = {
    "kernels": "chip and kernels: products, attention and the rest",
    "messages": "distributed: sums over tensor ranks",
    "pass": "model: what no kernel explains of a pass",
    "engine": "serving: what the engine does besides",
    DEMAND: "demand: which requests come when",
}


def composed_page() -> str:
    """Return the answer to the question, and the part of each layer in its error."""
    point = ServingPoint(qps=8.0, **DESIGN)
    replica = deployment_of(point).hardware.replica
    squares = {
        metric: error_layers(replica, step, metric)
        for metric, (_, step) in zip(("ttft", "tpot"), EVERYDAY, strict=True)
    }
    rows = [answer("serving", DESIGN | {"qps": 8.0, "seed": seed}) for seed in SEEDS]
    full = [answer("serving", DESIGN | {"qps": OVERLOAD, "seed": seed}) for seed in SEEDS]
    nothing: Squares = dict.fromkeys(LAYERS, (0.0, 0.0))
    slower = {layer: (high, low) for layer, (low, high) in squares["tpot"].items()}
    asked = [
        ("throughput, tokens/s", _column(rows, "tokens_per_s"), nothing),
        ("time to first token, s", _column(rows, "ttft_mean_s"), squares["ttft"]),
        ("time per later token, s", _column(rows, "tpot_mean_s"), squares["tpot"]),
        ("throughput when overloaded, tokens/s", _column(full, "tokens_per_s"), slower),
    ]
    design = ", ".join(f"{name}={value}" for name, value in DESIGN.items())
    parts = [
        "# One question over all layers",
        "Written by `python -m docs.errors`; `sweeper-lab scenarios I2.4` answers it in a "
        "terminal.",
        f"> {QUESTION}",
        _sentence(asked),
        f"The design: `{design}`, requests taken in turn. Each figure is the mean over "
        f"{len(SEEDS)} draws of the demand, its band holds nine of ten. Below saturation all that "
        "comes is answered, however fast: throughput is the demand's, and no error of a layer "
        "below shows in it. What the same GPUs bear when more comes is the last figure.",
        "## Which layer makes how much of it",
        "The squared logarithm of a band's upper end is a sum over layers "
        "([how errors compose](method.md)). A cell has a layer's part of it, and the band around 1 "
        "that is left with the layer's error switched off.",
        _layers(asked),
        f"Of the time {in_words(shares_of_row(rows[0]))}: kernels are judged whole, with the chip "
        "they run on, so the chip has no line of its own. What is borrowed from other kernels or "
        "GPUs widens the first line.",
    ]
    return "\n\n".join(parts) + "\n"


Asked = Sequence[tuple[str, Floats, Squares]]
"""What a figure is called, its values over draws of the demand, and the layers of its error."""


def _sentence(asked: Asked) -> str:
    said = []
    for name, values, squares in asked:
        low, high = band_of(_with_demand(squares, values))
        mean = float(values.mean())
        what, _, unit = name.partition(", ")
        said.append(f"{what} {_short(mean)} {unit} ({_short(mean * low)} to {_short(mean * high)})")
    return f"**{said[0][0].upper()}{said[0][1:]}**; {'; '.join(said[1:])}."


def _layers(asked: Asked) -> str:
    """Return the table of layers; the parts of a column sum to 100 %."""
    columns = [_with_demand(squares, values) for _, values, squares in asked]
    lines = []
    for layer in (*LAYERS, DEMAND):
        cells = []
        for squares in columns:
            part = squares[layer][1] / sum(high for _, high in squares.values())
            low, high = band_of(squares, layer)
            cells.append(f"{part:.0%}; {low:.2f} to {high:.2f}")
        lines.append((NAMES[layer], *cells))
    whole = [f"100%; {low:.2f} to {high:.2f}" for low, high in map(band_of, columns)]
    lines.append(("all", *whole))
    return table(("layer", *(name for name, _, _ in asked)), lines)


def _with_demand(squares: Squares, values: Floats) -> Squares:
    """Return the layers with what means differ by from draw to draw of the demand."""
    drawn = (NINE_OF_TEN * float(np.std(np.log(values), ddof=1))) ** 2
    return {**squares, DEMAND: (drawn, drawn)}


def _column(rows: Sequence[Mapping[str, Any]], name: str) -> Floats:
    return np.array([row[name] for row in rows], np.float64)


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def rules() -> str:
    """Return how often measured passes lie in intervals by each rule, then from layer to layer."""
    reference = reference_folder()
    if reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE")
    known = configurations(reference)
    boards = dict.fromkeys(one.board for one in known)
    judged = [(board, [one for one in known if one.board == board]) for board in boards]
    return "\n\n".join(
        [
            table(
                ("board", "passes", *RULES, "nine of ten lie within"),
                [_board(board, many) for board, many in judged],
            ),
            table(("from", "to", "asked", "found"), _coverages()),
        ]
    )


RULES = ("all err together", "families by squares", "and what none explains")


def _board(board: str, many: Sequence[Configuration]) -> tuple[str, ...]:
    """Return the mean half-width by each rule, how many passes it holds, and what was seen."""
    cells = []
    for rule in RULES:
        ends = [_interval(one, rule) for one in many]
        held = [lo <= one.measured_s <= hi for one, (lo, hi) in zip(many, ends, strict=True)]
        wide = [(hi - lo) / 2.0 / one.predicted_s for one, (lo, hi) in zip(many, ends, strict=True)]
        cells.append(f"±{np.mean(wide):.0%} holds {np.mean(held):.0%}")
    off = np.quantile([abs(one.off_share) for one in many], 0.9)
    return board, str(len(many)), *cells, f"±{off:.0%}"


def _interval(one: Configuration, rule: str) -> tuple[float, float]:
    if rule != RULES[0]:
        shares = read_calibration(CALIBRATION)["unexplained"]
        share = float(shares["known_boards" if one.is_known else "new_boards"])
        return one.interval_s(share if rule == RULES[2] else 0.0)
    together = {"all": sum(one.half_widths.values(), HalfWidth())}
    lo_s, hi_s = interval_s(one.predicted_s, together, 0.0)
    return float(lo_s), float(hi_s)


LINES = (
    ("kernels", "passes", "composition", r"composition/interval, (.+) left out"),
    ("passes", "deployments", "serving", r"deployments (T...) within intervals"),
    (
        "passes of a GPU nobody measured",
        "deployments",
        "serving",
        r"deployments (T...), kernels of the GPU unmeasured, all: within intervals",
    ),
)
"""Lines of `validate` that say how often what a layer predicts of the next one holds."""


def _coverages() -> Iterator[tuple[str, ...]]:
    known = stored()
    for below, above, room, pattern in LINES:
        for check in known.get(room, ()):
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
