"""Published throughput of DeepSeek-V3 with experts on many GPUs, per GPU and step.

Nothing is fitted to these figures; `lab/claims/modern.toml` states them with their sources.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lab.claims.modern import wide
from simulators.core.folder import read_toml
from tests.conftest import ROOT

PAGE = (ROOT / "docs" / "explanation" / "serving.md").read_text(encoding="utf-8")
PUBLISHED = read_toml(ROOT / "lab" / "claims" / "modern.toml")["inputs"]["modern:wide"]["published"]
WITHIN = {"decode": 0.25, "prefill": 0.25, "prefill, unbalanced": 0.6}


@pytest.mark.parametrize("row", PUBLISHED, ids=lambda row: f"{row['pool']} on {row['gpu']}")
def test_throughput_on_many_gpus_is_that_published(row: dict[str, Any]) -> None:
    """Tokens per second and GPU, which the documentation also states."""
    [cells] = wide(Path(), [row])
    rate = float(cells["predicted"])
    assert rate == pytest.approx(row["per_s"], rel=WITHIN[row["pool"]])
    assert f"| {round(rate, -1):,.0f} |" in PAGE
