"""Multi-instance GPUs: slices of a GPU with separate SMs and memory."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.gpu import Gpu
from simulators.core.errors import Infeasible, UnknownNameError
from simulators.core.folder import read_toml

FACTS = Path(__file__).with_suffix(".toml")
MEMORY_SLICES, COMPUTE_SLICES = 8, 7


@dataclass(frozen=True)
class MigSlice:
    """A MIG profile of a GPU: SMs, and shares of the whole GPU."""

    sm_count: int
    memory_share: float  # of memory, its bandwidth and L2
    compute_share: float  # of the slices that are sold: what it is charged by


def mig_slice(gpu: Gpu, profile: str) -> MigSlice:
    """Return a slice of a GPU by the name of its profile, without the memory: `3g`.

    Raises:
        Infeasible: the MIG profiles of the GPU are unknown.
        UnknownNameError: the GPU has no such profile.

    >>> from simulators.catalog.gpu import load_gpu
    >>> mig_slice(load_gpu("a100_sxm"), "3g")
    MigSlice(sm_count=42, memory_share=0.5, compute_share=0.42857142857142855)
    """
    slices = read_toml(FACTS).get(gpu.measured_as or gpu.name)
    if slices is None:
        raise Infeasible("no_mig_profiles", f"{gpu.name} has none in {FACTS.name}")
    if profile not in slices:
        raise UnknownNameError("mig_slice", profile, tuple(slices))
    sms, memory = slices[profile]
    return MigSlice(sms, memory / MEMORY_SLICES, int(profile[:-1]) / COMPUTE_SLICES)
