"""Kernel predictions per CPU-second, in batches: `python -m benchmarks.kernels [--json]`.

The neural peer answers 60 to 490 kernels a second, one at a time; the tile model's first form in
numpy 218,000 products.
"""

from __future__ import annotations

import argparse
import statistics
import time

import numpy as np

from simulators.catalog.gpu import load_gpu
from simulators.core.contract import Check
from simulators.core.report import print_checks
from simulators.kernels.convolution import Convolution
from simulators.kernels.latency import Kernel, price
from simulators.workload.operators import Attention, Elementwise, Gemm, GroupedGemm, Norm

ROWS = 200_000
RUNS = 5
GEMM_BAR = 1e6
OTHERS_BAR = 3e5


def main() -> None:
    """Print the predictions per CPU-second of each operator family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    print_checks([_timed(*case) for case in _cases()], as_json=chosen.json)


def _cases() -> list[tuple[str, str, Kernel, float]]:
    draw = np.random.default_rng(np.random.SeedSequence(0))

    def sizes(most: int) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
        return draw.integers(1, most, ROWS).astype(np.float64)

    m, n, k, batch = sizes(8192), sizes(8192), sizes(8192), sizes(1024) + 1.0
    tokens, past = sizes(4096), sizes(32768)
    linear = Gemm(name="linear", m=m, n=n, k=k, dtype="fp32")
    batched = Gemm(name="bmm", m=m, n=n, k=k, batch=batch, dtype="fp32")
    half = Gemm(name="half", m=m, n=n, k=k, dtype="bf16")
    image = Convolution(
        name="conv", batch=32.0, in_channels=m, out_channels=n, kernel_size=3.0, input_size=56.0
    )
    experts = GroupedGemm(name="up", tokens=m, n=n, k=k, experts=64, top_k=6.0, dtype="bf16")
    prefill, decode = (
        Attention(
            name=phase, phase=phase, requests=tokens, query_tokens=tokens * new,
            pairs=tokens * new * past, kv_tokens=tokens * past, heads=32.0, kv_heads=8.0,
            head_dim=128.0, dtype="bf16",
        )
        for phase, new in (("prefill", 128.0), ("decode", 1.0))
    )  # fmt: skip
    softmax = Norm(name="softmax", kind="softmax", rows=m, cols=n, dtype="fp32")
    add = Elementwise(name="add", elements=m * n, reads=2.0, dtype="fp32")
    return [
        ("linear fp32, calibrated", "a100_pcie_40gb", linear, GEMM_BAR),
        ("batched fp32, calibrated", "a100_pcie_40gb", batched, GEMM_BAR),
        ("linear bf16", "h100_sxm", half, GEMM_BAR),
        ("convolution fp32, calibrated", "v100_pcie", image, OTHERS_BAR),
        ("grouped product bf16", "h100_sxm", experts, OTHERS_BAR),
        ("prefill attention bf16", "h100_sxm", prefill, OTHERS_BAR),
        ("decode attention bf16", "h100_sxm", decode, OTHERS_BAR),
        ("softmax fp32, calibrated", "v100_pcie", softmax, OTHERS_BAR),
        ("elementwise fp32, calibrated", "v100_pcie", add, OTHERS_BAR),
    ]


def _timed(name: str, gpu_name: str, operator: Kernel, bar: float) -> Check:
    """Return the median rate of some runs, compilation left out."""
    gpu = load_gpu(gpu_name)
    price(operator, gpu)
    rates = []
    for _ in range(RUNS):
        started = time.process_time()
        price(operator, gpu)
        rates.append(ROWS / (time.process_time() - started))
    rate = statistics.median(rates)
    return Check(name, rate, "1/s", bar, rate >= bar, ROWS, f"on {gpu_name}; at least")


if __name__ == "__main__":
    main()
