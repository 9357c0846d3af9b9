"""Clusters and prices: links are per direction, and every price has a day and a source."""

from __future__ import annotations

from pathlib import Path

import pytest

from simulators.catalog.cluster import cluster_for, load_cluster
from simulators.catalog.gpu import load_gpu
from simulators.catalog.price import load_prices
from simulators.core.errors import UserError
from simulators.core.folder import CLUSTERS, PRICES


@pytest.mark.parametrize("name", CLUSTERS.names())
def test_links_within_a_node_are_faster_than_between_nodes(name: str) -> None:
    cluster = load_cluster(name)
    assert cluster.intra.bytes_per_s > cluster.inter.bytes_per_s
    assert cluster.intra.latency_s < cluster.inter.latency_s


@pytest.mark.parametrize(("alias", "name"), [("hgx_h100", "dgx_h100"), ("hgx_a100", "dgx_a100")])
def test_cluster_alias_loads_the_same_cluster(alias: str, name: str) -> None:
    assert load_cluster(alias) == load_cluster(name)


def test_nvlink_bandwidth_is_per_direction() -> None:
    # NVIDIA prints both directions together: 900 GB/s for H100, 600 GB/s for A100.
    assert 2 * load_cluster("dgx_h100").intra.bytes_per_s == 900e9
    assert 2 * load_cluster("dgx_a100").intra.bytes_per_s == 600e9


def test_pcie_bandwidth_is_limited_by_the_older_side() -> None:
    t4 = load_gpu("t4")
    link = cluster_for("auto", t4).link(2, t4)
    assert link.bytes_per_s == t4.pcie_bytes_per_s


def test_ranks_beyond_one_node_use_the_network() -> None:
    h100 = load_gpu("h100_sxm")
    dgx = load_cluster("dgx_h100")
    assert dgx.link(16, h100) == dgx.inter


def test_every_price_has_a_date_and_a_source() -> None:
    prices = load_prices()
    quotes = [*prices.gpus.values(), prices.pue, prices.electricity_usd_per_kwh]
    quotes.append(prices.carbon_g_per_kwh)
    assert all(quote.value > 0 and len(quote.date) >= 4 and quote.source for quote in quotes)


def test_energy_cost_includes_the_power_usage_effectiveness() -> None:
    prices = load_prices()
    kwh_j = 3.6e6
    assert prices.carbon_g(kwh_j) == pytest.approx(390 * 1.25)
    assert prices.electricity_usd(kwh_j) == pytest.approx(0.08 * 1.25)


def test_gpu_without_a_price_is_named_in_the_error() -> None:
    with pytest.raises(UserError, match="no price for gpu 'mi210'"):
        load_prices().usd_per_gpu_hour(load_gpu("mi210"))


def test_price_without_a_source_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(PRICES.find("public_cloud").read_text() + "\n[gpus.mine]\nvalue = 1.0\n")
    with pytest.raises(UserError, match=r"gpus\.mine.*also needs date, source"):
        load_prices(str(path))
