"""A release of an engine chooses its runtime, in every simulator and for measured deployments."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa
import pytest

from lab.tables import deployments
from simulators.catalog.engine import load_engine, resolve_runtime
from simulators.composition.replica import load_runtime
from simulators.composition.simulator import SIMULATOR as COMPOSITION
from simulators.core.columns import batch_of
from simulators.core.errors import UserError
from simulators.core.fields import values_of
from simulators.core.folder import ENGINES
from simulators.serving.options import AUTO, OFF
from simulators.serving.point import ServingPoint
from simulators.serving.simulator import SIMULATOR, simulate

BASE = ServingPoint(
    model="gpt_oss_20b",
    gpu="h100_sxm",
    dtype="bf16+w4a16",
    kv_dtype="bf16",
    scheduler="vllm_v1",
    requests=60,
    qps=4.0,
)


@pytest.mark.parametrize("name", ENGINES.names())
def test_newest_release_is_the_default_runtime(name: str) -> None:
    engine = load_engine(name)
    releases = engine.releases
    assert engine.runtime_of_release(releases[-1].last) == engine.today
    assert engine.runtime_of_release("2100-01-01") == engine.today
    assert [load_runtime(one.runtime).framework for one in releases] == [name] * len(releases)
    dates = [one.before for one in releases if one.before]
    assert dates == sorted(dates)


@pytest.mark.parametrize(
    ("scheduler", "release", "runtime"),
    [
        ("vllm_v1", "0.8.5", "vllm_0_13"),
        ("vllm", "v0.13.2", "vllm_0_13"),
        ("vllm_v1", "0.14.0rc1", "vllm"),
        ("vllm_v1", "2025-12-31", "vllm_0_13"),
        ("sglang", "0.5.8.post1", "sglang_0_5_8"),
        ("sglang", "0.5.9", "sglang_0_5_9"),
        ("trtllm", "0.14", "trtllm_session"),
        ("trtllm", "1.1.0rc2.post2", "trtllm_1_1"),
        ("trtllm", "", "trtllm"),
    ],
)
def test_version_or_date_selects_the_runtime(scheduler: str, release: str, runtime: str) -> None:
    assert resolve_runtime("auto", scheduler, release) == runtime


@pytest.mark.parametrize("release", ["0.40", "latest", "2026-13-01", "0.0.1"])
def test_unknown_release_is_refused_with_known_releases(release: str) -> None:
    with pytest.raises(UserError, match=r"of vllm is unknown; known are 0\.8 to 0\.13"):
        replace(BASE, runtime="auto", release=release)


def test_release_requires_an_engine() -> None:
    with pytest.raises(UserError, match="needs the runtime of an engine"):
        replace(BASE, runtime="eager", release="0.8.5")


def test_serving_with_a_release_equals_serving_with_the_runtime() -> None:
    older = simulate(replace(BASE, runtime="auto", release="0.11"))
    assert older == simulate(replace(BASE, runtime="vllm_0_13"))
    assert older != simulate(BASE)


def test_batch_with_several_releases_equals_single_rows() -> None:
    usual = values_of(BASE) | {"runtime": "auto"}
    rows = [usual | {"release": release} for release in ("", "0.11", "2025-10-01")]
    found = SIMULATOR.evaluate(pa.RecordBatch.from_pylist(rows)).column("tpot_mean_s").to_pylist()
    assert found[1] == found[2] == simulate(replace(BASE, runtime="vllm_0_13")).tpot_mean_s
    assert found[0] == simulate(BASE).tpot_mean_s


def test_composition_with_a_release_equals_composition_with_the_runtime() -> None:
    def latency_s(**changes: str) -> float:
        usual = {"model": "gpt_oss_20b", "gpu": "h100_sxm", "dtype": "bf16+w4a16", "batch": 64}
        batch = batch_of(COMPOSITION.point, COMPOSITION.point(**usual, **changes).__dict__)
        return float(COMPOSITION.evaluate(batch).column("latency_s")[0].as_py())

    older = latency_s(runtime="vllm", release="0.8.5")
    assert older == latency_s(runtime="vllm_0_13")
    assert older > latency_s(runtime="vllm")


def test_row_depends_on_the_runtime_files_of_the_release() -> None:
    for simulator in (SIMULATOR, COMPOSITION):
        files = {file.stem for file in simulator.reads("release", "0.11")}
        assert {"vllm_0_13", "sglang_0_5_8", "trtllm_1_1"} <= files
        assert simulator.reads("release", "") == ()


def test_public_deployments_use_the_runtime_of_the_release_table() -> None:
    assert deployments.runtime_of("trtllm", "1.1.0rc2.post2", "2025-12-15") == "trtllm_1_1"
    assert deployments.runtime_of("sglang", "", "2025-11-02") == "sglang_0_5_9"
    assert load_runtime("sglang_0_5_8").like == "sglang_0_5_9"


@pytest.mark.parametrize(
    ("release", "is_async", "reserves"),
    [
        ("0.13", OFF, OFF),
        ("0.14", AUTO, OFF),
        ("0.20.1", AUTO, AUTO),
        ("2026-01-01", OFF, OFF),
        ("", AUTO, AUTO),
    ],
)
def test_release_selects_the_rules_of_the_scheduler(
    release: str, is_async: str, reserves: str
) -> None:
    """Options that became defaults later (vllm/config) are off; requested options stay."""
    found = replace(BASE, runtime="auto", scheduler="vllm_v1", release=release).scheduling
    assert (found.async_scheduling, found.scheduler_reserve_full_isl) == (is_async, reserves)
