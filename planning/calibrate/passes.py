"""A serving runtime calibrated to measured forward passes of an engine.

The mean ratio of measured over predicted times of passes gives one factor for all times of the
framework's runtime. Forward passes hold no queues: `ask` and load tests calibrate those.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from planning.calibrate.deployment import own_runtimes, runtime_of, scaled, shrunk
from planning.calibrate.measurements import Gain, read_table, write_calibration
from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.price import pass_s
from simulators.composition.replica import Replica, load_runtime, runtime_across
from simulators.core.errors import UserError
from simulators.core.folder import reader
from simulators.core.jit import Floats

FORMAT = "forward_passes"


def is_pass_file(file: Path) -> bool:
    """Return whether a file contains measured forward passes."""
    found: bool = reader(FORMAT, "is_pass_table")(read_table(file).column_names)
    return found


def calibrate_passes(name: str, measured: Path) -> tuple[list[Gain], Path]:
    """Write a runtime whose forward passes match measured ones.

    Args:
        name: name of the runtime, for `runtime=NAME`.
        measured: `fpm_forward_perf.parquet` of one engine.

    Returns:
        The gain of each kind of pass, with the factor fitted to every second row and tested on the
        others; and the written file.

    Raises:
        Infeasible: the parallelism does not fit the model.
        UserError: the table is malformed or not modelled, or the name is built in.
    """
    engine, passes = reader(FORMAT, "passes_of")(measured)
    framework = runtime_of(name, engine.framework)
    gpu = load_gpu(engine.gpu)
    replica = Replica(
        model=load_model(engine.model),
        gpu=gpu,
        cluster=cluster_for("auto", gpu),
        layout=engine.layout,
        dtype=engine.dtype,
        kv_dtype=engine.kv_dtype,
        runtime=runtime_across(load_runtime(framework), engine.layout.width),
    )
    ratios = [np.log(one.seconds / pass_s(replica, one.step)) for one in passes]
    if not all(np.isfinite(part).all() for part in ratios):
        raise UserError(f"{measured}: some passes have no predicted time")
    gains = [
        _gain(f"{one.kind} passes", part, ratios) for one, part in zip(passes, ratios, strict=True)
    ]
    factor = float(np.exp(_balanced(ratios)))
    content = {**scaled(engine.gpu, framework, factor), "provenance": {"factor": factor}}
    file, rows = own_runtimes() / f"{name}.toml", sum(part.size for part in ratios)
    error = float(np.mean([gain.after for gain in gains]))
    write_calibration(file, content, measured, rows, "every second row left out", error)
    return gains, file


def _balanced(ratios: list[Floats]) -> float:
    """Return the logarithm of the factor; kinds of passes count alike."""
    return float(np.mean([shrunk(part) for part in ratios]))


def _gain(name: str, part: Floats, ratios: list[Floats]) -> Gain:
    def error(factor: float, seen: Floats) -> float:
        return float(np.mean(np.abs(np.expm1(factor - seen))))

    held_out = part[1::2] if part.size > 1 else part
    halved, after = (_balanced([one[::step] for one in ratios]) for step in (4, 2))
    return Gain(name, part.size, error(0.0, part), error(halved, held_out), error(after, held_out))
