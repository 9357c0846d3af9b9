"""Constants fitted without a group of deployments, as if nobody had measured that model there.

A group is a model on a GPU, or a model on all its GPUs. Fits write these constants below
`lab/calibration/left_out/`, where claims find them; simulators know none of them, and are handed a
runtime and a server instead.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from lab.fits.engine_columns import ENGINE, PACES
from simulators.composition.replica import Runtime, load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError
from simulators.core.folder import PACKAGES
from simulators.serving.answer.error_bands import Width, shipped_width, width_from
from simulators.serving.deployment import NO_SERVER, NUMBERS, Frontend, load_frontend
from simulators.serving.run import RunCache

FOLDER = PACKAGES / "lab" / "calibration" / "left_out"
FRONTENDS, IN_PROCESS = FOLDER / "frontends.toml", FOLDER / "in_process.toml"
BANDS = FOLDER / "deployment_bands.toml"


def runtime_without(name: str, group: str) -> Runtime:
    """Return a runtime with the constants that were fitted without a group.

    Raises:
        UnknownNameError: it was never left out.

    >>> runtime_without("vllm", "llama3_1_70b.h100_sxm").name
    'vllm'
    """
    numbers = _numbers(name)
    if group not in numbers:
        raise UnknownNameError(f"group left out of runtime {name}", group, numbers)
    paces = {table: numbers[group].get(table, {}) for table in PACES}
    gaps = numbers[group]["runtime"] | numbers[group].get(name, {})
    return replace(load_runtime(name), **paces, **gaps)


def run_cache_without(name: str, group: str, decode: str = "") -> RunCache:
    """Return what simulates under a runtime fitted without a group, behind a server likewise.

    Of groups that nothing was fitted to, the usual ones. What sets an older release apart was
    fitted without the group's model.

    Args:
        name: of the runtime.
        group: a model on a GPU.
        decode: the kernel that an older release was configured to decode by; empty: none.
    """
    runtime = load_runtime(name)
    if runtime.like:
        model, models = group.partition(".")[0], _groups(FOLDER / "runtimes" / f"{name}.toml")
        times = models.get(model, {}).get("batch_times", runtime.batch_times)
        kernels = {**runtime.kernels, **({"decode": (decode,)} if decode else {})}
        return older_run_cache(runtime.like, group, times, kernels)
    if group not in _numbers(name):
        return RunCache()
    server = _server_without(runtime.framework, group) or load_frontend(name)
    return run_cache_of(runtime_without(name, group), server)


def _numbers(name: str) -> Mapping[str, Any]:
    """Return the constants of a runtime without each group; none of one that was not fitted."""
    file = FOLDER / "runtimes" / f"{ENGINE.get(name, name)}.toml"
    return _groups(file) if file.is_file() else {}


def older_run_cache(
    like: str,
    group: str,
    times: Mapping[str, float],
    kernels: Mapping[str, Sequence[str]],
) -> RunCache:
    """Return the run cache of an older engine release, fitted without a group.

    Args:
        like: the runtime of today's release.
        group: a model on a GPU.
        times: what kernels of a batch take over today's, by family.
        kernels: whose compete, by family.
    """
    today = load_runtime(like)
    if server := _server_without(today.framework, group):
        without = runtime_without(like, group)
        return run_cache_of(replace(without, batch_times=times, kernels=kernels), server)
    return RunCache(runtime=lambda _: replace(today, batch_times=times, kernels=kernels))


def _server_without(framework: str, group: str) -> Frontend | None:
    """Return the server fitted without a group; none of a group that nothing was fitted to."""
    server = _groups(FRONTENDS).get(group, {}).get(framework)
    return Frontend(**{number: server[number] for number in NUMBERS}) if server else None


def run_cache_of(runtime: Runtime, frontend: Frontend = NO_SERVER) -> RunCache:
    """Return what simulates under a runtime and behind a server, whatever a point calls them."""
    return RunCache(runtime=lambda _: runtime, server=lambda _: frontend)


def online_run_cache_without(model: str) -> RunCache:
    """Return what simulates engines that their own process asks, as if without a model's runs."""
    left_out = _groups(IN_PROCESS)[model]
    return RunCache(process=lambda runtime: Frontend(**left_out.get(runtime, {})))


def width_without(gpu: str, framework: str, metric: str) -> Width:
    """Return how far a latency of deployments lies off, as those on other GPUs show.

    Of a GPU on which no deployment was measured, as all of them do.
    """
    left_out = _groups(BANDS).get(gpu)
    if left_out is None:
        return shipped_width(framework, metric)
    return width_from(left_out[framework][metric])


def _groups(file: Path) -> Mapping[str, Any]:
    """Return what was fitted without each group."""
    return _read(file, file.stat().st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _read(file: Path, _mtime_ns: int) -> Mapping[str, Any]:
    groups: Mapping[str, Any] = read_calibration(file)["without"]
    return groups
