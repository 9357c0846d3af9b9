"""Devices known only from data sheets: bounds that every memory level must keep."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import (
    CACHE,
    CHIPLET,
    PIM,
    POOL,
    Gpu,
    MemoryLevel,
    load_gpu,
    load_memory,
)
from simulators.core.columns import DATASHEET
from simulators.core.errors import UserError
from simulators.core.folder import GPUS, MEMORIES
from simulators.kernels.energy import power_w
from simulators.kernels.price import price, roofline_s
from simulators.workload.operators import Compute, Elementwise, Embedding, Gemm

BY_SHEET = [name for name in GPUS.names() if not load_gpu(name).validated]
TPU = load_gpu("tpu_v5e")
SIZES = st.integers(0, 13).map(lambda power: 2.0**power)


def product(m: float) -> Gemm:
    return Gemm(name="any", m=m, n=4096.0, k=4096.0, dtype="bf16")


def chain(elements: float) -> Elementwise:
    return Elementwise(name="add", elements=elements, reads=2.0, dtype="bf16")


def with_level(**level: Any) -> Gpu:
    return replace(TPU, levels=(MemoryLevel(**level),))


def seconds(operator: Compute, gpu: Gpu = TPU) -> float:
    return float(price(operator, gpu).latency_s)


@pytest.mark.parametrize("name", BY_SHEET)
def test_dram_model_is_never_faster_than_the_roofline(name: str) -> None:
    gpu = replace(load_gpu(name), levels=())
    for operator in (product(1.0), product(8192.0), chain(1e9)):
        found = price(operator, gpu)
        assert found.latency_s >= roofline_s(operator, gpu)
        assert (found.level == DATASHEET).all()


@given(m=SIZES, rate=st.floats(1e11, 1e13), flops=st.floats(1e11, 1e14))
def test_processing_in_memory_speedup_is_bounded_by_banks(
    m: float, rate: float, flops: float
) -> None:
    inside = seconds(product(m), with_level(kind=PIM, bytes_per_s=rate, flops=flops))
    moved = 2.0 * (m * 4096.0 + 4096.0 * 4096.0 + m * 4096.0)
    banks = max(moved / rate, 2.0 * m * 4096.0**2 / flops)
    assert min(seconds(product(m)), banks) == pytest.approx(inside)


@given(m=SIZES, link=st.floats(1e9, 1e13), count=st.integers(1, 16))
def test_chiplet_links_never_reduce_time(m: float, link: float, count: int) -> None:
    linked = seconds(product(m), with_level(kind=CHIPLET, bytes_per_s=link, count=count))
    assert linked >= seconds(product(m))
    if count == 1:
        assert linked == seconds(product(m))


@given(part=st.floats(0.01, 0.99), rate=st.floats(1e9, 1e13))
def test_memory_pool_is_not_faster_than_the_sum_of_bandwidths(part: float, rate: float) -> None:
    size = int(part * TPU.hbm_bytes)
    pooled = with_level(kind=POOL, bytes_per_s=rate, bytes=size)
    whole = chain(1e9)
    own = TPU.hbm_bytes_per_s * load_memory(TPU.memory).streaming
    moved = 6e9
    assert seconds(whole, pooled) >= moved / (own + rate) * (1.0 - 1e-12)
    if rate <= own * size / (TPU.hbm_bytes - size):
        assert seconds(whole, pooled) == pytest.approx(moved * size / TPU.hbm_bytes / rate)


def test_cache_serves_fitting_data_and_forwards_the_rest() -> None:
    cached = with_level(kind=CACHE, bytes_per_s=1e13, bytes=2**20)
    assert seconds(chain(1e5), cached) < seconds(chain(1e5))
    assert seconds(chain(1e7), cached) == seconds(chain(1e7))
    assert seconds(product(1.0), cached) == seconds(product(1.0))


@pytest.mark.parametrize("name", MEMORIES.names())
def test_sequential_rows_are_read_faster_than_random_rows(name: str) -> None:
    memory = load_memory(name)
    assert 0.0 < memory.random <= memory.streaming < 1.0
    assert memory.streaming > 0.9


def test_gathered_rows_are_slower_than_sequential_bytes() -> None:
    table = Embedding(name="table", rows=1e6, cols=512.0, dtype="bf16")
    in_order = np.asarray(roofline_s(table, TPU)) / load_memory(TPU.memory).streaming
    assert seconds(table) > in_order


def test_cpu_peak_is_cores_times_lanes_times_clock() -> None:
    assert load_gpu("xeon_8480").peak("fp32") == 56 * 2 * 16 * 2 * 2.0e9
    assert load_gpu("grace").peak("fp32") == 72 * 4 * 4 * 2 * 3.1e9


def test_torus_uses_all_links_when_every_ring_closes() -> None:
    chip = load_gpu("tpu_v4")
    pod = cluster_for("auto", chip)
    assert [pod.link(n, chip).bytes_per_s for n in (4, 32, 64)] == [1e11, 1e11, 3e11]
    pod = cluster_for("auto", TPU)
    assert [pod.link(n, TPU).bytes_per_s for n in (8, 256)] == [1e11, 2e11]


def test_higher_energy_per_bit_draws_more_power() -> None:
    stream = chain(1e9)
    watts = [
        float(power_w(stream, replace(TPU, memory=name), price(stream, TPU).latency_s))
        for name in ("hbm2", "hbm2e")
    ]
    assert watts[0] < watts[1] <= TPU.tdp_w


@pytest.mark.parametrize(
    ("level", "said"),
    [
        ('kind = "heap"\nbytes_per_s = 1e12', "kind is 'heap'; it is cache, chiplet, pool, pim"),
        ('kind = "pim"\nbytes_per_s = 1e12', "levels.flops is 0; it must be positive"),
        ('kind = "pool"\nbytes_per_s = 1e12\nbytes = 900_000_000_000', "a pool is a part of"),
        ('kind = "chiplet"\nbytes_per_s = 1e12\nshare = 2.0', "share lies between 0 and 1"),
    ],
)
def test_invalid_memory_level_raises_a_user_error(tmp_path: Path, level: str, said: str) -> None:
    file = tmp_path / "mine.toml"
    file.write_text(f'source = "mine"\nlike = "tpu_v5e"\n[[levels]]\n{level}\n')
    with pytest.raises(UserError, match=said):
        load_gpu(str(file))


def test_memory_levels_require_an_unvalidated_data_sheet(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('source = "mine"\nlike = "h100_sxm"\nmemory = "hbm3"\n')
    with pytest.raises(UserError, match="validated = false"):
        load_gpu(str(file))
