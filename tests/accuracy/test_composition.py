"""Whole passes against measured ones that nothing was fitted to."""

from __future__ import annotations

import pytest

from simulators.composition.checks import TABLES, checks
from simulators.core.calibration import reference_folder

# Mean error in percent that a table may have; the held-out groups are named in `measured.py`.
BUDGETS = {
    "composition/llama2_70b_token_time": 4.0,
    "composition/llama2_70b_prompt_time": 12.0,
    "composition/decode_w4a16": 10.0,
    "composition/decode_fp16": 5.0,
    "composition/llama3_1_tpot_h100": 6.0,
    "composition/llama3_1_tpot_b200": 13.0,
    "composition/static_batch": 12.0,
}


@pytest.mark.slow
def test_whole_passes_stay_within_their_budgets() -> None:
    reference = reference_folder()
    if reference is None:
        pytest.skip("no measured tables: set SWEEPER_REFERENCE to a reference folder")
    for check in checks(reference, "test"):
        if check.value is None or check.name.startswith("composition/graphs"):
            continue  # whole graphs have a test of their own
        assert check.value <= BUDGETS[check.name], f"{check.name}: {check.value} %, {check.note}"


def test_every_table_has_a_budget() -> None:
    assert {f"composition/{table.name}" for table in TABLES} == set(BUDGETS)
