"""Reused keys and values: time to the first token of 32 tokens asked behind a history.

TinyChat on an RTX 4090, Llama-3-8B in 4 bits (mit-han-lab/llm-awq): the history is in the cache, or
is computed again. Ours is a pass of the tokens that are new behind those that are there. So few
keep the host busy longer than the GPU: TinyChat launches a prompt's layer without the kernels that
it has fused for decodes, in a time that was fitted to the two shortest prompts computed whole.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from lab.claims.lines import at_most, error_line, percent_off
from lab.tables.forward_passes import REUSE, tinychat_prompts
from simulators.composition.replica import load_runtime
from simulators.core.contract import Check

NEEDS = (REUSE,)

LIMIT = 15.0


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield errors with and without reuse, and how much a longer history costs with it."""
    runtime = load_runtime("eager")
    for name, limit in (("reused", LIMIT), ("computed", None)):
        cases = list(tinychat_prompts(reference, reused=name == "reused"))
        ours = np.array([case.predicted_s(runtime) for case in cases])
        theirs = np.array([case.measured_s for case in cases])
        off = percent_off(ours, theirs)
        each = ", ".join(
            f"{1e3 * mine:.1f} of {1e3 * case.measured_s:.1f} ms behind {case.group}"
            for mine, case in zip(ours.tolist(), cases, strict=True)
        )
        yield error_line(
            f"prefix cache, TTFT of 32 tokens behind a history {name}", [off], limit, each
        )
        if name == "reused":
            grown = 100.0 * (np.array([ours[-1], theirs[-1]]) / [ours[0], theirs[0]] - 1.0)
    yield at_most(
        "prefix cache, growth of that TTFT from the shortest to the longest history reused",
        float(grown[0]),
        LIMIT,
        len(cases),
        f"measured {grown[1]:.1f} %",
    )
