"""Speculative decoding: published speed-ups of drafts, and tokens of an iteration.

Speed-ups by batch are those of decodes alone, `tokens x time of a plain pass / time of a drafted
one`, as the published ones at fixed batch sizes are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl

from lab.tables.rows import read_records
from simulators.core.fields import point_from
from simulators.serving.deployment import deployment_of
from simulators.serving.point import ServingPoint
from simulators.serving.prices.batch_price import prices_of
from simulators.serving.simulator import simulate
from simulators.serving.speculation import acceptance
from simulators.serving.speculation.adaptive import drafted_s
from simulators.serving.speculation.drafter import drafter_of

CITED = "serving_modern/cited_single_numbers.parquet"


def cited(reference: Path, figures: Sequence[Mapping[str, Any]]) -> pl.DataFrame:
    """Return figures of documentation: of a point, or its ratio to a plain one.

    Args:
        reference: the folder of reference tables.
        figures: each with the name of its line, the cited setting, the metric, the point, perhaps
            the point it is divided by, and whether a speed-up of times is cited.
    """
    cited_rows = {row["setting"]: row for row in read_records(reference / CITED)}
    rows = []
    for figure in figures:
        row = cited_rows[figure["setting"]]
        metric, measured = figure["metric"], row["treated"]
        predicted = getattr(simulate(point_from(ServingPoint, figure["point"])), metric)
        if "plain" in figure:
            predicted /= getattr(simulate(point_from(ServingPoint, figure["plain"])), metric)
        if metric.endswith("_s") and "plain" not in figure:  # seconds per token, cited as a rate
            predicted = 1.0 / predicted
        if figure.get("is_speed_up", False):
            predicted, measured = 1.0 / predicted, row["baseline"] / row["treated"]
        label = f"{predicted:.3g} of {measured:.3g}"
        cells = {"line": figure["line"], "label": label, "measured": measured}
        rows.append({**cells, "predicted": predicted})
    return pl.DataFrame(rows)


def by_batch(
    _reference: Path,
    point: Mapping[str, Any],
    context: float,
    published: Mapping[str, Mapping[str, float]],
) -> pl.DataFrame:
    """Return speed-ups by number of drafts and batch.

    Args:
        _reference: the folder of reference tables, which is not read.
        point: what decodes.
        context: tokens of each sequence so far.
        published: speed-up by drafts and batch.
    """
    decoder = point_from(ServingPoint, point)
    rows = []
    for drafts, speed_ups in published.items():
        drafted = replace(
            decoder, speculation=replace(decoder.speculation, num_draft_tokens=int(drafts))
        )
        survival = acceptance.survival(
            decoder.speculation.method, decoder.speculation.acceptance, int(drafts)
        )
        tokens = acceptance.mean_acceptance_length(survival)
        for batch, measured in speed_ups.items():
            plain_s = _pass_s(
                replace(decoder, speculation=replace(decoder.speculation, num_draft_tokens=0)),
                int(batch),
                context,
            )
            predicted = tokens * plain_s / _pass_s(drafted, int(batch), context)
            label = f"{drafts} drafts, batch {batch}"
            rows.append({"label": label, "predicted": predicted, "measured": measured})
    return pl.DataFrame(rows)


def _pass_s(point: ServingPoint, batch: int, context: float) -> float:
    """Return the seconds of an iteration of decodes, with their drafts if there are any."""
    hardware = deployment_of(point).hardware
    drafter = drafter_of(point, hardware)
    table, price = prices_of(point, hardware, drafter)
    return drafted_s(table, price, float(batch), drafter.drafted if drafter else 0, context)
