"""Operator latencies predicted per CPU-second, in batches: `python -m benchmarks.kernels [--json]`.

Every timed call prices new sizes, so that no cache answers it. The neural network of NeuSight
predicts 60 to 490 kernels per second, one at a time.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.timing import RUNS, median_cpu_s
from simulators.catalog.gpu import load_gpu
from simulators.core.checks import Check, print_checks
from simulators.kernels.energy import power_w
from simulators.kernels.price import price
from simulators.workload.operators import (
    Attention,
    CausalConvolution,
    Compute,
    Convolution,
    Elementwise,
    Embedding,
    EncoderAttention,
    Gemm,
    GroupedGemm,
    Norm,
    Quantisation,
    StateUpdate,
)

ROWS = 200_000
PRODUCTS, DECODES, OTHERS = 1.5e6, 1e6, 3e5
"""Lowest acceptable rates per CPU-second of matrix products, decode attentions and the rest."""

Case = tuple[str, str, Compute, float]


def main() -> None:
    """Print the predictions per CPU-second of each operator family."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args()
    drawn = [_cases(seed) for seed in range(1 + RUNS)]
    found = [_priced(runs) for runs in zip(*drawn, strict=True)]
    print_checks([*found, _power()], as_json=chosen.json)


def _cases(seed: int) -> list[Case]:
    """Return each operator family with sizes drawn from a seed, and its lowest rate."""
    draw = np.random.default_rng(np.random.SeedSequence(seed))

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
            name=phase,
            phase=phase,
            requests=tokens,
            query_tokens=tokens * new,
            pairs=tokens * new * past,
            kv_tokens=tokens * past,
            heads=32.0,
            kv_heads=8.0,
            head_dim=128.0,
            dtype="bf16",
        )
        for phase, new in (("prefill", 128.0), ("decode", 1.0))
    )
    narrow = {
        name: Gemm(name=name, m=m, n=n, k=k, dtype=dtype, weight_dtype=weights)
        for name, dtype, weights in (
            ("fp8", "fp8", ""),
            ("fp8 in blocks", "fp8", "fp8_block"),
            ("fp4", "fp4", ""),
            ("4-bit weights", "fp16", "int4"),
        )
    }
    heads = Gemm(name="heads", m=m, n=512.0, k=128.0, batch=16.0, dtype="bf16")
    latent = Attention(
        name="latent",
        phase="decode",
        requests=tokens,
        query_tokens=tokens,
        pairs=tokens * past,
        kv_tokens=tokens * past,
        heads=16.0,
        kv_heads=576.0 / 1088.0,
        head_dim=544.0,
        latent=True,
        dtype="bf16",
    )
    sides: dict[str, Compute] = {
        "state convolution": CausalConvolution(
            name="c", phase="prefill", requests=m, tokens=m * tokens, channels=8192.0
        ),
        "delta rule": StateUpdate(
            name="s",
            phase="prefill",
            requests=m,
            tokens=m * tokens,
            key_heads=16.0,
            value_heads=32.0,
        ),
        "encoder": EncoderAttention(
            name="e", requests=m, tokens=m * tokens, heads=16.0, head_dim=64.0
        ),
        "quantisation": Quantisation(name="q", rows=m, cols=n),
    }
    embedding = Embedding(name="embedding", rows=m, cols=n, dtype="bf16")
    softmax = Norm(name="softmax", kind="softmax", rows=m, cols=n, dtype="fp32")
    add = Elementwise(name="add", elements=m * n, reads=2.0, dtype="fp32")
    return [
        ("linear fp32, calibrated", "a100_pcie_40gb", linear, PRODUCTS),
        ("batched fp32, calibrated", "a100_pcie_40gb", batched, PRODUCTS),
        ("linear bf16", "h100_sxm", half, PRODUCTS),
        ("convolution fp32, calibrated", "v100_pcie", image, OTHERS),
        ("grouped product bf16", "h100_sxm", experts, OTHERS),
        ("prefill attention bf16", "h100_sxm", prefill, OTHERS),
        ("decode attention bf16", "h100_sxm", decode, DECODES),
        ("softmax fp32, calibrated", "v100_pcie", softmax, OTHERS),
        ("elementwise fp32, calibrated", "v100_pcie", add, OTHERS),
        *(
            (f"product {name}", "b200_sxm" if name == "fp4" else "h200_sxm", product, OTHERS)
            for name, product in narrow.items()
        ),
        ("heads with a matrix each bf16", "h100_sxm", heads, OTHERS),
        ("latent decode bf16", "h100_sxm", latent, OTHERS),
        *((name, "h100_sxm", side, OTHERS) for name, side in sides.items()),
        ("embedding bf16", "h100_sxm", embedding, OTHERS),
    ]


def _priced(runs: Sequence[Case]) -> Check:
    """Return the rate at which one operator is priced, each run with sizes of its own."""
    name, gpu_name, _, bar = runs[0]
    gpu = load_gpu(gpu_name)
    return _rate(name, gpu_name, lambda run: functools.partial(price, runs[run][2], gpu), bar)


def _power() -> Check:
    """Return the rate at which power is predicted for known latencies."""
    gpu = load_gpu("h200_sxm")

    def prepare(run: int) -> Callable[[], object]:
        m = np.arange(1.0, ROWS + 1.0) + run * ROWS
        operator = Gemm(name="half", m=m, n=4096.0, k=4096.0, dtype="bf16")
        return functools.partial(power_w, operator, gpu, price(operator, gpu).latency_s)

    return _rate("watts", gpu.name, prepare, OTHERS)


def _rate(
    name: str, gpu_name: str, prepare: Callable[[int], Callable[[], object]], bar: float
) -> Check:
    rate = ROWS / median_cpu_s(prepare)[1]
    return Check(name, rate, "1/s", bar, rate >= bar, ROWS, f"on {gpu_name}; at least")


if __name__ == "__main__":
    main()
