"""Laws of accelerators under a serving workload, in the analytic fidelity."""

from __future__ import annotations

from typing import Any

import numpy as np

from simulators.catalog.price import usd_per_mtok
from simulators.codesign.simulator import DEFAULTS, OWN, SIMULATOR, served
from simulators.composition.replica import NOTHING
from simulators.serving.options import CLOSED
from simulators.serving.simulator import SIMULATOR as SERVING
from tests.laws.laws import Laws, Mask, Sample, at_most, between, close, one_of, whole
from tests.laws.serving.draws import steady

BANDWIDTH = {"bandwidth_scale": lambda p: 2.0 * p["bandwidth_scale"]}


def consistent(point: dict[str, Any]) -> dict[str, Any]:
    """Return a point of few options besides the array's; a GPU has no sizes of an array."""
    scheduler = point["scheduler"]
    load = {name: point[name] for name in ("qps", "prompt_tokens", "output_tokens", "max_batch")}
    process = {name: point[name] for name in ("arrivals.process", "arrivals.clients")}
    own = {name: point[name] for name in ("accelerator", "mapping", *OWN)}
    scales = {name: point[name] for name in ("gpu", "model", "sm_scale", "bandwidth_scale")}
    point = steady(DEFAULTS | {"seed": 0}) | load | process | own | scales
    point |= {"scheduler": scheduler, "fidelity": "analytic", "dtype": "int8", "kv_dtype": "int8"}
    if point["accelerator"] == NOTHING:
        point |= {name: DEFAULTS[name] for name in OWN}
    return point


LAWS = Laws(
    SIMULATOR,
    draws={
        "model": one_of("llama3_1_8b", "qwen3_4b"),
        "gpu": one_of("h100_sxm", "a100_sxm"),
        "accelerator": one_of("tpu_like", "tpu_like", NOTHING),
        "pe_rows": one_of(0, 64, 256),
        "pe_cols": one_of(0, 0, 256),
        "buffer_scale": one_of(1.0, 1.0, 2.0),
        "spad_scale": one_of(1.0, 2.0),
        "array_clock_hz": one_of(0.0, 5e8),
        "node_nm": one_of(0.0, 7.0),
        "dram_type": one_of("", "", "hbm2"),
        "mapping": one_of("closed_form"),
        "dataflow": one_of("any"),
        "sm_scale": one_of(1.0),
        "bandwidth_scale": one_of(1.0, 0.5),
        "scheduler": one_of("vllm_v1", "vllm", "sglang"),
        "qps": between(0.001, 5.0),
        "prompt_tokens": one_of(17, 128, 1000),
        "output_tokens": one_of(1, 16, 128),
        "max_batch": one_of(1, 8, 64),
        "arrivals.process": one_of("poisson", "poisson", CLOSED),
        "arrivals.clients": whole(1, 40),
    },
    consistent=consistent,
    shared=(*OWN, "accelerator", "model", "gpu", "bandwidth_scale"),
    alike=40,
)
law = LAWS.law


@law
def area_is_positive(sample: Sample) -> Mask:
    """A device has an area."""
    return np.asarray(sample["area_mm2"] > 0.0)


@law
def area_does_not_depend_on_load(sample: Sample) -> Mask:
    """Load and batch size change no silicon."""
    pair = sample.changed(qps=0.01, max_batch=4, prompt_tokens=50)
    return pair.holds(close, "area_mm2")


@law
def larger_array_is_not_smaller(sample: Sample) -> Mask:
    """Twice the columns of an array do not lower its area."""
    pair = sample.changed(
        pe_cols=lambda p: 0 if p["accelerator"] == NOTHING else 2 * (p["pe_cols"] or 128)
    )
    fewer = sample.per_row(lambda p: p["pe_cols"] == 0)
    return pair.holds(at_most, "area_mm2") | fewer


@law
def larger_buffers_are_not_smaller(sample: Sample) -> Mask:
    """Twice the depth of shared buffers does not lower the area."""
    pair = sample.changed(
        buffer_scale=lambda p: p["buffer_scale"] * (1.0 if p["accelerator"] == NOTHING else 2.0)
    )
    return pair.holds(at_most, "area_mm2")


@law
def metrics_are_those_of_serving(sample: Sample) -> Mask:
    """A design's metrics equal those of the serving simulator with its array."""
    found = np.ones(sample["gpus"].size, bool)
    points = sample.per_row(lambda p: p)[:20]
    rows = Sample(SERVING, [served(point) for point in points])
    for name in ("tpot_mean_s", "tokens_per_s", "energy_j_per_token", "cost_usd_per_mtok"):
        found[:20] &= close(rows[name], sample[name][:20], 0.0)
    return found


@law
def goodput_is_at_most_throughput(sample: Sample) -> Mask:
    """Requests that meet both SLOs are some of all requests."""
    goodput = sample["goodput_per_s"]
    return (goodput >= 0.0) & at_most(goodput, sample["requests_per_s"])


@law
def looser_deadlines_do_not_lower_goodput(sample: Sample) -> Mask:
    """Ten times the SLOs do not lower goodput."""
    pair = sample.changed(slo_ttft_s=10.0, slo_tpot_s=0.5)
    return pair.holds(at_most, "goodput_per_s")


@law
def one_output_token_has_a_goodput(sample: Sample) -> Mask:
    """Requests of one token have no TPOT, so only TTFT decides: some are in time if any are served.

    A saturated row has no TTFT, and its goodput is 0.
    """
    one = (sample["output_tokens"] == 1) & ~np.isnan(sample["ttft_mean_s"])
    return ~one | (sample["goodput_per_s"] > 0.0)


@law
def utilization_is_a_share(sample: Sample) -> Mask:
    """Utilization and memory use lie in 0 to 1."""
    shares = [sample[name] for name in ("utilization", "kv_use_mean")]
    return np.all([(share >= 0.0) & at_most(share, 1.0) for share in shares], axis=0)


@law
def tokens_are_conserved(sample: Sample) -> Mask:
    """Tokens per second are requests per second times the output."""
    return close(sample["requests_per_s"] * sample["output_tokens"], sample["tokens_per_s"])


@law
def cost_is_price_times_time(sample: Sample) -> Mask:
    """Dollars per token are dollars per hour over tokens per hour."""
    usd = usd_per_mtok(sample["cost_usd_per_hour"], 1.0, sample["tokens_per_s"])
    return close(usd, sample["cost_usd_per_mtok"])


@law
def load_is_served_or_saturated(sample: Sample) -> Mask:
    """An open loop below saturation completes what arrives."""
    served_all = close(sample["requests_per_s"], sample["qps"], 1e-6)
    return served_all | sample["saturated"] | (sample["arrivals.process"] == CLOSED)


@law
def lower_load_does_not_lower_the_share_in_time(sample: Sample) -> Mask:
    """Half the load does not increase TTFT, where neither row is saturated."""
    pair = sample.changed(qps=lambda p: 0.5 * p["qps"])
    return pair.holds(lambda full, half: at_most(half, full, 1e-6), "ttft_mean_s")


@law
def more_bandwidth_is_never_slower(sample: Sample) -> Mask:
    """Twice the memory bandwidth does not lower an array's largest throughput."""
    pair = sample.changed(**BANDWIDTH)
    is_gpu = sample["accelerator"] == NOTHING
    return pair.holds(lambda one, two: at_most(one, two, 1e-6), "tokens_per_s") | is_gpu


LAWS.add_same_alone(10)
test_laws_of_codesign = LAWS.tests()
