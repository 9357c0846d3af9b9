"""Laws of serving runs, event by event, and of steady states, over all axes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np

from simulators.catalog.gpu import load_gpu, what_if
from simulators.catalog.model import load_model
from simulators.core.columns import SHARES
from simulators.kernels.energy import idle_w_of, peak_w_of
from simulators.serving.answer.metrics import RATES_WITH_INTERVAL, WITH_INTERVAL
from simulators.serving.answer.statistics import STATISTICS
from simulators.serving.options import CLOSED, EVENLY
from simulators.serving.point import NOTHING
from simulators.serving.simulator import SIMULATOR
from tests.laws.laws import Laws, Mask, Sample, at_most, close, one_of
from tests.laws.serving.draws import DRAWS, MIXTURES, consistent, steady

EVENTS = Laws(SIMULATOR, draws=DRAWS | {"fidelity": one_of("event")}, consistent=consistent)
STEADY = Laws(SIMULATOR, draws=DRAWS | {"fidelity": one_of("analytic")}, consistent=steady)
KINDS = ("ttft", "tpot", "itl", "e2e", "queue")
SHARE_METRICS = ("utilization", "prefill_utilization", "decode_utilization", "pool_imbalance")
SHARE_METRICS += ("kv_use_mean", "kv_use_max", "kv_block_fill", "mfu", "prefix_hit_ratio")
SHARE_METRICS += ("prompt_flops_saved", *SHARES)


def both(check: Any) -> Any:
    """Register a law of runs and of steady states."""
    return STEADY.law(EVENTS.law(check))


def paid(sample: Sample) -> np.ndarray:
    """Return the number of GPUs that are paid, on average over time."""
    return np.asarray(sample["gpus"] * sample["replicas_mean"] / sample["replicas"])


def has_fixed_lengths(sample: Sample) -> Mask:
    """Return where all requests have the same number of output tokens."""
    fixed = (sample["output_tokens"] > 0) & (sample["lengths.shape"] == EVENLY)
    return fixed & (sample["lengths.spread"] == 0.0) & (sample["lengths.max_output_tokens"] == 0)


def is_whole(sample: Sample) -> Mask:
    """Return where rates refer to the whole run."""
    return np.asarray(close(sample["window_s"], sample["makespan_s"], 1e-12))


def within_power(sample: Sample) -> tuple[np.ndarray, np.ndarray]:
    """Return the idle power and the power limit of all GPUs, in watts; inf where not fixed.

    Pools of two GPU types and co-located models, which share a GPU's power, have no limit here. A
    model with time slices pays the power of its own slices alone.
    """

    def watts(point: dict[str, Any]) -> tuple[float, float]:
        names = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
        gpu = what_if(load_gpu(point["gpu"]), **{name: point[name] for name in names})
        if point["pools.decode_gpu"] != NOTHING or point["colocation.models"] != NOTHING:
            return 0.0, np.inf
        share = point["colocation.power_share"] * point["colocation.time_share"]
        return idle_w_of(gpu) * share, peak_w_of(gpu)

    low, high = sample.per_row(watts).reshape(-1, 2).T
    return low * paid(sample), high * paid(sample)


@both
def percentiles_are_ordered(sample: Sample) -> Mask:
    """Percentiles of latencies are ordered, and no mean or percentile exceeds the maximum."""
    found = np.ones(sample["gpus"].size, bool)
    for kind in KINDS:
        mean, *ordered = (sample[f"{kind}_{name}_s"] for name in STATISTICS)
        pairs = [*itertools.pairwise(ordered), (mean, ordered[-1])]
        found &= np.all([at_most(*pair) for pair in pairs], axis=0)
    return found


@both
def latencies_are_parts_of_each_other(sample: Sample) -> Mask:
    """The queue is part of TTFT, and TTFT is part of E2E."""
    inside = at_most(sample["queue_mean_s"], sample["ttft_mean_s"])
    return (
        inside
        & at_most(sample["ttft_mean_s"], sample["e2e_mean_s"])
        & ~(sample["queue_mean_s"] < 0.0)
    )


@both
def later_tokens_add_up(sample: Sample) -> Mask:
    """With equal outputs, E2E is TTFT and TPOT times the later tokens."""
    later = np.nan_to_num(sample["tpot_mean_s"]) * (sample["output_tokens"] - 1)
    total = close(sample["ttft_mean_s"] + later, sample["e2e_mean_s"])
    return total | ~has_fixed_lengths(sample) | np.isnan(sample["ttft_mean_s"])


@both
def one_output_token_has_no_tpot(sample: Sample) -> Mask:
    """TPOT and ITL are null if no request has a second token, and only then."""
    one = (sample["output_tokens"] == 1) | (sample["lengths.max_output_tokens"] == 1)
    is_null = np.isnan(sample["tpot_mean_s"]) & np.isnan(sample["itl_mean_s"])
    return (is_null == one) | ~has_fixed_lengths(sample)


@both
def shares_lie_between_zero_and_one(sample: Sample) -> Mask:
    """Utilization, memory use, fill of blocks, MFU, hits and evidence are shares.

    MFU is exempt where layers or tokens are skipped: it counts their FLOPs.
    """
    skips = np.any(
        [sample[f"dynamic.{name}"] < 1.0 for name in ("exit_depth", "mod_capacity")]
        + [sample["dynamic.prune_keep_ratio"] < 1.0],
        axis=0,
    )
    found = np.ones(sample["gpus"].size, bool)
    for name in SHARE_METRICS:
        inside = ~(sample[name] < -1e-12) & at_most(sample[name], 1.0)
        found &= inside | skips if name == "mfu" else inside
    return found


@both
def evidence_sums_to_one(sample: Sample) -> Mask:
    """The shares of time by evidence sum to one."""
    return close(sum(sample[name] for name in SHARES), 1.0, 1e-6)


@both
def rates_per_gpu_sum_to_the_total(sample: Sample) -> Mask:
    """Tokens per second of the paid GPUs sum to the total."""
    return close(sample["tokens_per_s_per_gpu"] * paid(sample), sample["tokens_per_s"])


@both
def tokens_are_conserved(sample: Sample) -> Mask:
    """With equal outputs, tokens per second are requests per second times the output."""
    tokens = sample["requests_per_s"] * sample["output_tokens"]
    return close(tokens, sample["tokens_per_s"]) | ~has_fixed_lengths(sample)


@both
def batch_is_at_most_its_limit(sample: Sample) -> Mask:
    """A batch has at most `max_batch` requests on each rank, and at least a part of one."""
    limit = sample["max_batch"] * sample["attention_dp"]
    return (sample["mean_batch"] > 0.0) & at_most(sample["mean_batch"], limit)


@both
def acceptance_length_is_between_one_and_the_drafts(sample: Sample) -> Mask:
    """An iteration emits one token, and at most all levels of drafts besides."""
    most = 1.0 + sample["speculation.num_draft_tokens"] * (sample["speculation.method"] != NOTHING)
    length = sample["mean_acceptance_length"]
    return at_most(1.0, length) & at_most(length, most)


@both
def cost_is_price_times_time(sample: Sample) -> Mask:
    """Dollars per hour are those of the tokens of an hour."""
    usd = sample["cost_usd_per_mtok"] * sample["tokens_per_s"] * 3600.0 / 1e6
    return close(usd, sample["cost_usd_per_hour"]) | (sample["tokens_per_s"] == 0.0)


@both
def power_is_between_idle_and_limit(sample: Sample) -> Mask:
    """Energy per token times tokens per second is at least idle power and at most the limit."""
    low_w, high_w = within_power(sample)
    power_w = sample["energy_j_per_token"] * sample["tokens_per_s"]
    return at_most(low_w, power_w, 1e-6) & at_most(power_w, high_w, 1e-6)


@both
def weights_are_read_for_each_token(sample: Sample) -> Mask:
    """TPOT is at least the time to read a dense model's weights, over the tokens of an iteration.

    Models that skip layers are left out, and so are mixtures and pools of two GPU types.
    """

    def least_s(point: dict[str, Any]) -> float:
        if point["model"] in MIXTURES or point["pools.decode_gpu"] != NOTHING:
            return 0.0
        model, gpu = load_model(point["model"]), load_gpu(point["gpu"])
        tp = (point["pools.decode_tp"] if point["pools.prefill_gpus"] else 0) or point["tp"]
        read = model.parameters - model.vocab * model.hidden * (2 - model.tied_embeddings)
        read *= 1.0 if point["dtype"] == "fp8" else 2.0
        skipped = point["dynamic.exit_depth"] * point["dynamic.mod_capacity"] < 1.0
        return 0.0 if skipped else read / tp / gpu.hbm_bytes_per_s / point["bandwidth_scale"]

    tokens = np.nan_to_num(sample["mean_acceptance_length"], nan=1.0)
    return at_most(sample.per_row(least_s) / tokens, sample["tpot_mean_s"])


@EVENTS.law
def requests_are_conserved(sample: Sample) -> Mask:
    """All requests complete or are rejected; latencies refer to all after the warm-up."""
    total = sample["completed_requests"] + sample["rejected_requests"]
    measured = sample["measured_requests"] + sample["measurement.warmup"]
    return (total == sample["requests"]) & (measured == sample["completed_requests"])


@EVENTS.law
def littles_law_holds_for_the_server(sample: Sample) -> Mask:
    """Requests in the system are requests per second times E2E, over a whole run."""
    whole = is_whole(sample) & (sample["measurement.warmup"] == 0)
    inside = sample["completed_requests"] * sample["e2e_mean_s"] / sample["makespan_s"]
    return close(inside, sample["requests_in_system_mean"]) | ~whole


@EVENTS.law
def littles_law_holds_for_clients(sample: Sample) -> Mask:
    """A closed loop has at most its clients in the system, over a whole run."""
    closed = (sample["arrivals.process"] == CLOSED) & is_whole(sample)
    return at_most(sample["requests_in_system_mean"], sample["arrivals.clients"]) | ~closed


@EVENTS.law
def goodput_is_at_most_throughput(sample: Sample) -> Mask:
    """Requests that meet both SLOs are some of the completed requests."""
    return (sample["goodput_per_s"] >= 0.0) & at_most(
        sample["goodput_per_s"], sample["requests_per_s"]
    )


@EVENTS.law
def run_lasts_as_long_as_its_longest_request(sample: Sample) -> Mask:
    """The run contains its window and its longest request."""
    inside = at_most(sample["window_s"], sample["makespan_s"])
    return inside & at_most(sample["e2e_max_s"], sample["makespan_s"])


@EVENTS.law
def intervals_contain_their_values(sample: Sample) -> Mask:
    """A 90 % interval contains its value."""
    found = np.ones(sample["gpus"].size, bool)
    for name in (*WITH_INTERVAL, *RATES_WITH_INTERVAL):
        found &= at_most(sample[f"{name}_lo"], sample[name])
        found &= at_most(sample[name], sample[f"{name}_hi"])
    return found


@EVENTS.law
def kv_transfers_are_part_of_ttft(sample: Sample) -> Mask:
    """Transfers exist with separate pools only, and are part of the time to first token."""
    moved_s = sample["kv_wait_mean_s"] + sample["kv_transfer_mean_s"]
    has_pools = sample["pools.prefill_gpus"] > 0
    return (np.isnan(moved_s) != has_pools) & at_most(moved_s, sample["ttft_mean_s"])


@EVENTS.law
def mean_use_is_at_most_highest_use(sample: Sample) -> Mask:
    """The mean use of KV blocks is at most the highest one."""
    return at_most(sample["kv_use_mean"], sample["kv_use_max"])


@EVENTS.law
def prices_and_deadlines_change_no_physics(sample: Sample) -> Mask:
    """Looser deadlines change nothing but goodput, which does not fall; prices only costs."""
    pair = sample.changed(
        slo_ttft_s=lambda p: 10.0 * p["slo_ttft_s"],
        slo_tpot_s=lambda p: 10.0 * p["slo_tpot_s"],
        usd_per_gpu_hour=2.0,
    )
    same = [pair.holds(close, name) for name in ("e2e_mean_s", "energy_j_per_token", "window_s")]
    return np.all([*same, pair.holds(at_most, "goodput_per_s")], axis=0)


@EVENTS.law
def explanation_sums_to_the_run(sample: Sample) -> Mask:
    """Times of an explanation sum to E2E, and its energies to the energy of a mean request."""
    found = np.ones(sample["gpus"].size, bool)
    points = sample.per_row(lambda p: p)[:10]
    for number, point in enumerate(points):
        rows = SIMULATOR.explain(point)
        request_j = sample["energy_j_per_token"] * sample["tokens_per_s"] / sample["requests_per_s"]
        found[number] = close(sum(row.time_s for row in rows), sample["e2e_mean_s"][number])
        found[number] &= close(sum(row.energy_j for row in rows), request_j[number])
    return found


@STEADY.law
def load_is_served_or_saturated(sample: Sample) -> Mask:
    """An open loop below saturation completes what arrives; above it, less, without a TTFT.

    Lengths of a workload are left out: some of its requests are too long and rejected.
    """
    is_open = (sample["arrivals.process"] != CLOSED) & (sample["prompt_tokens"] > 0)
    is_open &= sample["output_tokens"] > 0
    served = close(sample["requests_per_s"], sample["qps"], 1e-6) & ~np.isnan(sample["ttft_mean_s"])
    refused = at_most(sample["requests_per_s"], sample["qps"]) & np.isnan(sample["ttft_mean_s"])
    return np.where(sample["saturated"], refused, served) | ~is_open


@STEADY.law
def steady_closed_loop_has_its_clients(sample: Sample) -> Mask:
    """A closed loop holds at most its clients."""
    inside = sample["requests_per_s"] * sample["e2e_mean_s"]
    closed = sample["arrivals.process"] == CLOSED
    return at_most(inside, sample["arrivals.clients"], 1e-6) | ~closed


@STEADY.law
def lower_load_is_never_slower(sample: Sample) -> Mask:
    """Half the requests per second do not increase TTFT, TPOT or utilization.

    TTFT may grow by an iteration, since the wait is limited by the running time that the queue
    leaves. Saturated rows are left out: below saturation, TPOT under chunked prefill is that of a
    mean iteration, a request's own chunks included. So are pipelines, whose bubbles differ by
    batch, and prompts of one token or outputs of two, most of whose running time is that wait. So
    are batches of two: near saturation the closed form has too few prompts beside a decode.
    """
    pair = sample.changed(qps=lambda p: 0.5 * p["qps"])
    slower = [
        pair.holds(lambda full, half: at_most(half, full, 1e-6), name)
        for name in ("tpot_mean_s", "utilization")
    ]
    iteration_s = np.nan_to_num(sample["tpot_mean_s"][pair.both[sample.feasible]])
    slower.append(pair.holds(lambda full, half: at_most(half, full + iteration_s), "ttft_mean_s"))
    short = (sample["prompt_tokens"] == 1) | (sample["output_tokens"] == 2)
    small = sample["max_batch"] <= 2
    return np.all(slower, axis=0) | sample["saturated"] | (sample["pp"] > 1) | short | small


@STEADY.law
def no_load_means_no_queue(sample: Sample) -> Mask:
    """At a request a year, the utilization and the queue vanish."""
    pair = sample.changed(qps=3e-8, **{"arrivals__process": "poisson"})
    idle = pair.holds(lambda _, idle: idle < 1e-3, "utilization")
    return idle & pair.holds(lambda _, idle: idle < 1e-3, "queue_mean_s")


@STEADY.law
def replicas_divide_the_load(sample: Sample) -> Mask:
    """Twice the replicas serve twice the requests per second at the same latencies and cost."""
    pair = sample.changed(
        qps=lambda p: 2.0 * p["qps"],
        replicas=lambda p: 2 * p["replicas"],
        arrivals__clients=lambda p: 2 * p["arrivals.clients"],
    )
    same = ("ttft_mean_s", "tpot_mean_s", "energy_j_per_token", "cost_usd_per_mtok")
    twice = pair.holds(lambda one, two: close(2.0 * one, two), "tokens_per_s")
    return np.all([twice, *(pair.holds(close, name) for name in same)], axis=0)


STEADY.add_same_alone()
test_laws_of_runs = EVENTS.tests()
test_laws_of_steady_states = STEADY.tests()
