"""FP8, adapters and sequence parallelism on published set-ups, beside the bands asked of each.

Nobody measured these very rows: bands are of neighbouring measurements or published formulas, and
were written down before anything was predicted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from lab.claims.lines import absent
from simulators.core.contract import Check
from simulators.dataflow.mapping.files import read_yaml
from simulators.training.metrics import JOB_FIELDS, job_of
from simulators.training.point import TrainingPoint, batch_of
from simulators.training.simulator import SIMULATOR

BANDS = "scenarios.yaml"
NEEDS = (BANDS,)
GB, MILLION = 1e9, 1e6

FP8 = TrainingPoint(
    model="llama2_7b",
    gpu="h100_sxm",
    dtype="fp8",
    dp=8,
    zero=3,
    sequence=4096,
    micro_batch=2,
    batch=16,
    recompute="none",
    gradient_dtype="bf16",
)
ADAPTERS = TrainingPoint(
    model="llama2_7b",
    gpu="a100_sxm",
    sequence=2048,
    micro_batch=4,
    batch=4,
    recompute="elementwise",
    lora_rank=16,
    lora_targets="all",
)
"""What runs again is not told, but that a token takes four FLOPs a weight: no product does."""

ALL_TRAINED = replace(ADAPTERS, lora_rank=0, dp=8, batch=32, zero=3)
"""All of it does not fit one GPU: eight share it out."""

CUT_NORMS = TrainingPoint(
    model="llama2_13b",
    gpu="h100_sxm",
    tp=8,
    sequence=8192,
    micro_batch=1,
    batch=8,
    recompute="none",
)


def checks(reference: Path, _rows: str) -> Iterator[Check]:
    """Yield each anchor beside its band."""
    bands = {
        (scenario["id"], target["name"]): target["band"]
        for scenario in read_yaml(reference / BANDS)["scenarios"]
        for target in scenario["target_metrics"]
    }
    for (scenario, name), (what, value, unit) in anchors().items():
        band = bands.get((scenario, name))
        if band is None:
            yield absent(f"anchor, {what}", unit=unit)
            continue
        low, high = map(float, band)
        note = f"asked for {low:g} to {high:g}"
        yield Check(f"anchor, {what}", value, unit, high, low <= value <= high, 1, note)
    others = {"nothing runs again": "none", "layers run again": "full"}
    points = [replace(ADAPTERS, recompute=how) for how in others.values()]
    answers = SIMULATOR.evaluate(batch_of(points)).to_pylist()
    note = "the anchor's band is of a step whose norms and activations run again, and no product"
    for what, row in zip(others, answers, strict=True):
        name = f"memory with adapters, {what}"
        yield Check(name, row["memory_bytes"] / GB, "GB", None, None, 1, note)


def anchors() -> Mapping[tuple[str, str], tuple[str, float, str]]:
    """Return what each anchor says, its value and its unit, by scenario and metric."""
    asked = {
        "fp8": FP8,
        "bf16": replace(FP8, dtype="bf16"),
        "adapters": ADAPTERS,
        "all": ALL_TRAINED,
        "cut": CUT_NORMS,
        "whole": replace(CUT_NORMS, sequence_parallel=False),
    }
    answers = SIMULATOR.evaluate(batch_of(list(asked.values()))).to_pylist()
    rows = dict(zip(asked, answers, strict=True))

    def over(metric: str, one: str, other: str) -> float:
        return float(rows[one][metric] / rows[other][metric])

    trained = job_of({name: getattr(ADAPTERS, name) for name in JOB_FIELDS})
    return {
        ("T4.1", "speedup_vs_bf16"): ("FP8 over bf16", over("step_s", "bf16", "fp8"), "x"),
        ("T4.1", "memory_ratio_vs_bf16"): (
            "memory of FP8 over bf16",
            over("memory_bytes", "fp8", "bf16"),
            "x",
        ),
        ("T4.2", "tokens_per_s"): (
            "tokens a second with adapters",
            rows["adapters"]["tokens_per_s"],
            "1/s",
        ),
        ("T4.2", "speedup_vs_full"): (
            "adapters over training all",
            over("tokens_per_s_per_gpu", "adapters", "all"),
            "x",
        ),
        ("T4.2", "peak_memory"): (
            "memory with adapters",
            rows["adapters"]["memory_bytes"] / GB,
            "GB",
        ),
        ("T4.2", "trainable_params"): (
            "weights of adapters",
            trained.trained_share * trained.model.parameters / MILLION,
            "M",
        ),
        ("T4.3", "activation_memory_ratio"): (
            "activations, sequence parallel",
            over("activation_bytes", "cut", "whole"),
            "x",
        ),
        ("T4.3", "iteration_time_ratio"): (
            "step, sequence parallel",
            over("step_s", "cut", "whole"),
            "x",
        ),
    }
