"""Predictions for AgentX cover its configurations, with intervals that hold the values."""

from __future__ import annotations

import polars as pl

from lab.predictions.agentx import METRICS, TABLE, points


def test_table_predicts_every_configuration() -> None:
    table = pl.read_csv(TABLE)
    expected = [(key, point.arrivals.clients) for key, point in points()]
    assert list(zip(table["configuration"], table["lanes"], strict=True)) == expected
    assert table["configuration"].n_unique() >= 6
    assert set(METRICS) <= set(table.columns)


def test_predictions_lie_in_wide_intervals() -> None:
    table = pl.read_csv(TABLE)
    for name in ("ttft_mean_s", "tpot_mean_s", "tokens_per_s"):
        low, value, high = (table[column] for column in (f"{name}_lo", name, f"{name}_hi"))
        assert ((low < value) & (value < high)).all()
    # No run with agents was measured, so no interval of TTFT is narrow.
    assert (table["ttft_mean_s_hi"] / table["ttft_mean_s_lo"] > 4.0).all()
