"""Calibration files say what they rest on, and `--check` says how far a refit differs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lab.fits.driver import Calibration, difference
from planning.calibrate.measurements import write_sealed
from simulators.core.calibration import read_calibration
from simulators.core.errors import UserError

FITTED = Calibration(
    file=Path("links.toml"),
    content={"link": {"share": 0.81234, "seen": (1, 2.5)}, "tree": {"leaves": "3 4 5"}},
    style=".3g",
    tables=["table.csv", "absent.csv"],
    rows=12,
    split="every fifth row",
    errors=np.array([0.1, -0.2]),
)


def written(folder: Path) -> Path:
    (folder / "table.csv").write_text("a\n1\n")
    file = folder / "links.toml"
    write_sealed(file, FITTED.text("links", folder))
    return file


def test_a_calibration_states_tables_rows_parameters_and_held_out_error(tmp_path: Path) -> None:
    stored = read_calibration(written(tmp_path))
    provenance = stored["provenance"]
    assert provenance["measured"] == ["table.csv"]
    assert provenance["rows"] == 12
    assert provenance["parameters"] == 6
    assert provenance["held_out_mape"] == 0.15
    assert stored["link"] == {"share": 0.812, "seen": [1, 2.5]}


def test_a_check_reports_how_far_a_refit_differs(tmp_path: Path) -> None:
    file = written(tmp_path)
    assert difference(FITTED.document(tmp_path), file) == "reproduced"
    other = replace(FITTED, content={**FITTED.content, "tree": {"leaves": "3 4 6"}})
    said = difference(other.document(tmp_path), file)
    assert "1 of 7 entries differ, numbers by up to 20 %; first: tree.leaves.2" in said
    other = replace(FITTED, errors=[0.5])
    assert "held_out_mape" in difference(other.document(tmp_path), file)


def test_a_fit_without_any_of_its_tables_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nothing to fit to"):
        FITTED.document(tmp_path)
