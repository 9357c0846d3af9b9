"""A fit recovers the parameters behind synthetic measurements and stores all of them."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pytest

from lab.fits.driver import main
from lab.tables.fp32 import catalog_name, rows_of_table
from lab.tables.rows import fraction
from planning.calibrate.kernels import fit_named
from simulators.catalog.gpu import load_gpu
from simulators.core.errors import UserError
from simulators.kernels.levels import profile_of
from simulators.kernels.price import price_call
from simulators.workload.operators import Gemm

SHAPES = [(m, n, k) for m in (512, 4096) for n in (1024, 8192) for k in (1024, 4096, 16384)]


def table(compute: float) -> pa.Table:
    """Return measurements of an L40S that sustains a given share of peak."""
    gpu = load_gpu("l40s")
    profile = profile_of(gpu, "zero_shot")
    rates = dataclasses.replace(profile.gemm["linear"], compute=compute)
    true = dataclasses.replace(profile, gemm={**profile.gemm, "linear": rates})
    m, n, k = (np.array(column, np.float64) for column in zip(*SHAPES, strict=True))
    seconds = price_call(Gemm(name="linear", m=m, n=n, k=k, dtype="fp32"), gpu, true).latency_s
    return pa.table(
        {
            "op": ["linear"] * m.size,
            "gpu": ["L40S"] * m.size,
            "m": m,
            "n": n,
            "k": k,
            "latency_us": seconds * 1e6,
        }
    )


def test_a_few_rows_are_left_to_the_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(table(0.35), tmp_path / "mine.csv")
    with pytest.raises(UserError, match="sweeper calibrate l40s"):
        main(["fp32_kernels", "--device", "l40s", "--measured", "mine.csv"])


def test_a_table_without_latencies_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    pyarrow.csv.write_csv(table(0.5).drop_columns(["latency_us"]), tmp_path / "mine.csv")
    with pytest.raises(UserError, match="lacks the column latency_us"):
        main(["fp32_kernels", "--device", "l40s", "--measured", "mine.csv"])


def test_a_missing_size_is_named() -> None:
    with pytest.raises(UserError, match="linear lacks the column k"):
        list(rows_of_table(table(0.5).drop_columns(["k"])))


def test_gpus_are_found_by_the_names_of_measured_tables() -> None:
    assert catalog_name("V100-PCIE-32GB") == "v100_pcie"
    assert catalog_name("H100-SXM-80GB") == "h100_sxm"
    assert catalog_name("MI250") == "mi210"  # one die of it: twins


def test_repeats_of_a_shape_fall_on_one_side() -> None:
    rows = next(iter(rows_of_table(table(0.5))))
    sides: dict[tuple[float, float], set[bool]] = {}
    for n, k, aside in zip(rows.sizes["n"], rows.sizes["k"], rows.held_out, strict=True):
        sides.setdefault((n, k), set()).add(bool(aside))
    assert all(len(side) == 1 for side in sides.values())


def test_groups_are_spread_evenly() -> None:
    share = fraction(np.arange(10_000, dtype=np.uint64))
    assert abs(float(np.mean(share < 0.5)) - 0.5) < 0.02


def test_a_line_in_logarithms_is_found_despite_outliers() -> None:
    x = np.linspace(1.0, 10.0, 50)
    seconds = 3.0 * x**2
    seconds[::10] *= 5.0
    found = fit_named(
        lambda numbers: numbers["factor"] * x ** numbers["exponent"],
        ["factor", "exponent"],
        np.zeros(2),
        seconds,
        low=np.full(2, -5.0),
        high=np.full(2, 5.0),
        ridge=1e-6,
    )
    assert found["factor"] == pytest.approx(3.0, rel=0.02)
    assert found["exponent"] == pytest.approx(2.0, rel=0.02)
