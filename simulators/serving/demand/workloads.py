"""How long a prompt is says much about how long the answer will be, so the two are drawn together.

A workload is a table of quantiles of the prompt and, for ranges of prompt length, of the output.
`chat` and `code` were fitted to production traces; one's own is a file of the same form in
`catalog/workloads/`:

    [prompt]
    probability = [0, 0.9, 1]       # omitted: even steps
    tokens = [16, 200, 4000]        # quantiles there; a single one: all alike
    [[output]]
    prompt_up_to = 1000             # omitted in the last table
    tokens = [100, 300]
    [[output]]
    distribution = "lognormal"      # or uniform, zipf (with an exponent); omitted: quantiles
    mean = 200
    sigma = 0.8
    least = 1
    most = 2048
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.calibration import read_choice
from simulators.core.errors import UserError
from simulators.core.folder import WORKLOADS
from simulators.core.jit import Floats, Ints
from simulators.serving.demand.length_distributions import Distribution, read_distribution


@dataclass(frozen=True)
class Workload:
    """Prompt lengths, and output lengths given the prompt."""

    name: str
    prompt: Distribution
    prompt_up_to: tuple[float, ...]  # upper ends of the ranges, the last without end
    output: tuple[Distribution, ...]

    def draw(self, uniforms: Floats) -> tuple[Ints, Ints]:
        """Return prompt and output tokens for rows of two uniform numbers."""
        prompt = self.prompt.at(uniforms[:, 0])
        which = np.searchsorted(np.array(self.prompt_up_to[:-1]), prompt, side="left")
        output = np.empty(prompt.size, np.int64)
        for table in range(len(self.output)):
            rows = which == table
            output[rows] = self.output[table].at(uniforms[rows, 1])
        return prompt, output


def load_workload(name: str) -> Workload:
    """Return the workload of that name or TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: a table is missing or means nothing.

    >>> bool(load_workload("chat").draw(np.array([[0.5, 0.5]]))[0][0] > 500)
    True
    """
    return WORKLOADS.load(name, _workload)


def _workload(path: Path) -> Workload:
    sheet = read_choice(path)
    outputs = sheet.get("output")
    if not isinstance(outputs, list) or not outputs:
        raise UserError(f"{path}: a workload needs at least one [[output]] table")
    ends = [float(table.get("prompt_up_to", np.inf)) for table in outputs]
    if ends[-1] != np.inf or sorted(set(ends)) != ends:
        raise UserError(
            f"{path}: prompt_up_to must rise from table to table and be omitted in the last"
        )
    return Workload(
        name=path.stem,
        prompt=_distribution(path, "[prompt]", sheet.get("prompt")),
        prompt_up_to=tuple(ends),
        output=tuple(_distribution(path, f"[[output]] {i + 1}", t) for i, t in enumerate(outputs)),
    )


def _distribution(path: Path, where: str, table: Any) -> Distribution:
    """Return the distribution of one table of the file, or say what is wrong with it."""
    try:
        return read_distribution(table if isinstance(table, dict) else {})
    except UserError as error:
        raise UserError(f"{path}: {where} {error}") from error
