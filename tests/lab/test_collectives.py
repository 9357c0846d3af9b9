"""Measurements of one's own become curves: known truths are found again, outliers forgiven."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lab.fits.collectives import held_out_coverage
from lab.fits.driver import main
from lab.tables.collectives import read_own
from simulators.collectives.measured import measured_time
from simulators.core.columns import EXTRAPOLATED
from simulators.core.errors import UserError

SIZES = tuple(1 << power for power in range(10, 30, 2))


def truth_s(size: float, ranks: int) -> float:
    return 8e-6 + 2e-6 * ranks + size * (ranks - 1) / ranks / 2e11


def table(path: Path, *, disturbed: int = 0, noise: float = 0.0) -> Path:
    random = np.random.default_rng(1)
    lines = ["collective,dtype,ranks,bytes,time_us"]
    for collective in ("all_gather", "reduce_scatter"):
        for ranks in (2, 4, 8):
            for size in SIZES:
                slow = 1.5 if size == disturbed else 1.0
                time_us = 1e6 * truth_s(size, ranks) * slow * np.exp(noise * random.normal())
                lines.append(f"{collective},half,{ranks},{size},{time_us}")
    path.write_text("\n".join(lines) + "\n")
    return path


def fitted_s(size: float, ranks: int) -> tuple[float, bool]:
    timed = measured_time(
        gpu="mine",
        library="nccl",
        collective="all_gather",
        dtype="fp16",
        ranks=ranks,
        size_bytes=np.array([size]),
    )
    assert timed.lo_s[0] < timed.time_s[0] < timed.hi_s[0]
    return float(timed.time_s[0]), timed.level[0] == EXTRAPOLATED


def test_a_new_interconnect_is_a_file_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    main(["collectives", "--device", "mine", "--measured", str(table(tmp_path / "mine.csv"))])
    for size in (1 << 13, 1 << 21, 1 << 28):
        time_s, is_far = fitted_s(size, 8)
        assert time_s == pytest.approx(truth_s(size, 8), rel=0.05)
        assert not is_far
    time_s, is_far = fitted_s(1 << 24, 6)
    assert time_s == pytest.approx(truth_s(1 << 24, 6), rel=0.1)
    assert is_far


def test_one_disturbed_size_bends_its_neighbours_little(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = table(tmp_path / "mine.csv", disturbed=1 << 20)
    main(["collectives", "--device", "mine", "--measured", str(rows)])
    for size in (1 << 18, 1 << 22):
        assert fitted_s(size, 4)[0] == pytest.approx(truth_s(size, 4), rel=0.1)


def test_intervals_hold_nine_tenths_of_what_they_have_not_seen(tmp_path: Path) -> None:
    for noise in (0.02, 0.1):
        measured = read_own(table(tmp_path / "mine.csv", noise=noise))
        assert np.mean(held_out_coverage(measured)) > 0.85


def test_a_table_that_lacks_a_column_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "bad.csv"
    file.write_text("collective,ranks\nall_gather,2\n")
    with pytest.raises(UserError, match="lacks the column dtype"):
        read_own(file)
