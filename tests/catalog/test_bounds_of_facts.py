"""Facts have bounds, as fields of points have: nonsense is refused when a file is read."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.catalog.cluster import load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import load_prices
from simulators.core.errors import UserError
from simulators.core.folder import CLUSTERS, FOLDERS, GPUS, PRICES, Folder, read_toml
from sweeper.space.design_space import DesignSpace


def edited(folder: Folder, name: str, before: str, after: str, to: Path) -> str:
    """Return the path of a copy of a shipped file with another text in it."""
    text = folder.find(name).read_text()
    assert before in text
    file = to / f"{name}.toml"
    file.write_text(text.replace(before, after, 1))
    return str(file)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ("value = 3.99", "value = -5.0", "gpus.h100_sxm.value is -5; it must be at least 0"),
        ("value = 3.99", "value = nan", "value is nan; it must be a finite number"),
        ("value = 3.99", "value = 1e999", "value is 1e999; it must be a finite number"),
        ("value = 3.99", "value = 1e300", r"value is 1e\+300; it must be .* at most 1e\+18"),
        ("[pue]\nvalue = 1.25", "[pue]\nvalue = 0.5", "pue is 0.5; it must be at least 1"),
    ],
)
def test_prices_out_of_their_bounds_are_refused(
    tmp_path: Path, before: str, after: str, said: str
) -> None:
    with pytest.raises(UserError, match=said):
        load_prices(edited(PRICES, "public_cloud", before, after, tmp_path))


@pytest.mark.parametrize(
    ("watts", "said"),
    [("-60.0", "idle_w is -60; it must be at least 0"), ("9e4", "idle_w is 90000; it is at most")],
)
def test_idle_power_is_between_nothing_and_the_largest_power(
    tmp_path: Path, watts: str, said: str
) -> None:
    file = tmp_path / "own.toml"
    file.write_text(f'like = "h100_sxm"\nidle_w = {watts}\n')
    with pytest.raises(UserError, match=said):
        load_gpu(str(file))


def test_latency_of_a_cluster_is_not_negative(tmp_path: Path) -> None:
    text = CLUSTERS.find("dgx_h100").read_text()
    latency = next(line for line in text.splitlines() if line.startswith("latency_s"))
    wrong = edited(CLUSTERS, "dgx_h100", latency, "latency_s = -1e-5", tmp_path)
    with pytest.raises(UserError, match="latency_s is -1e-05; it must be at least 0"):
        load_cluster(wrong)


@pytest.mark.parametrize(
    ("price", "said"),
    [(-5.0, "is -5; it must be at least 0"), (float("nan"), "nan is not a number")],
)
def test_axis_with_a_price_below_zero_is_refused(price: float, said: str) -> None:
    with pytest.raises(UserError, match=said):
        DesignSpace.of("serving", model="llama2_7b", gpu="h100_sxm", usd_per_gpu_hour=[price, 2.0])


@pytest.mark.parametrize("folder", [f for f in FOLDERS.values() if f.suffix == ".toml"])
def test_shipped_facts_are_finite(folder: Folder) -> None:
    for name in folder.names():
        assert read_toml(folder.find(name))  # raises for NaN and infinities


def test_shipped_gpus_are_within_their_bounds() -> None:
    assert all(load_gpu(name).tdp_w > 0.0 for name in GPUS.names())
