"""Runs of AISimulate 0.13 (NVIDIA), under the rules of vLLM 1: what a change of one setting does.

Its times are another simulator's and not the truth: a change should have the same sign here, and
about the same size. Its tables hold kernels timed alone, on GPUs that do not slow down under load.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from lab.tables.rows import numbers, read_table
from simulators.core.errors import UserError
from simulators.core.fields import point_from
from simulators.serving.demand.requests import Requests
from simulators.serving.point import ServingPoint
from simulators.serving.run import run_of

REQUESTS = "serving_peers/aisimulate_requests.parquet"


def changes(
    reference: Path, base: Mapping[str, Any], pairs: Sequence[Mapping[str, Any]]
) -> pl.DataFrame:
    """Return ratios of mean TTFT and TPOT of two runs on the same requests.

    Args:
        reference: the folder of reference tables.
        base: settings of all runs.
        pairs: each with the run whose requests both take, two settings and the published means.
    """
    rows = []
    for pair in pairs:
        asked = requests_of(reference / REQUESTS, pair["run"])
        points = [
            point_from(ServingPoint, {**base, "model": pair["model"], **one})
            for one in pair["settings"]
        ]
        before, after = (run_of(point, asked).metrics() for point in points)
        for metric in ("ttft", "tpot"):
            ours_s = [getattr(one, f"{metric}_mean_s") for one in (before, after)]
            theirs_ms = pair[f"{metric}_ms"]
            ours, theirs = ours_s[1] / ours_s[0], theirs_ms[1] / theirs_ms[0]
            cells = {"change": pair["name"], "metric": metric.upper(), "measured": theirs}
            error = abs(ours / theirs - 1.0)
            is_same = (ours > 1.0) == (theirs > 1.0)
            label = f"ours x{ours:.2f}, theirs x{theirs:.2f}"
            more = {"error": error, "is_same_sign": is_same, "label": label}
            rows.append({**cells, "predicted": ours, **more})
    return pl.DataFrame(rows)


def requests_of(file: Path, run: str) -> Requests:
    """Return the requests of a run.

    Raises:
        UserError: there are none.
    """
    rows = read_table(file, ("request_id",), run=run).sort_by("request_id")
    if not rows.num_rows:
        raise UserError(f"{file.name} has no request of {run}")
    columns = numbers(rows, ("arrival_ms", "input_tokens", "output_tokens"))
    arrival_ms, prompt, output = columns.values()
    lengths = prompt.astype(np.int64), output.astype(np.int64)
    return Requests(arrival_ms / 1e3, *lengths, np.zeros((len(rows), 2)))
