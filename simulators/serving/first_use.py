"""Stall of the first prompts of a server that was started for its load.

Engines compile, tune or load a kernel when it first runs with a shape: FlashInfer compiles modules
that an image does not hold, Triton and AITER a variant per shape, and PyTorch's allocator asks the
driver for memory. Clients of a closed loop send their first prompts together, so all of them wait;
later requests do not. With ten requests per client the first prompts are the 99th percentile. An
engine that runs such prompts before it accepts requests has no stall (`warms_prompts` of its file).

The stall is the sum of two fitted times: of the first pass with many prompts, by framework and
architecture, and of the first pass that continues a prompt, where the engine's file names a kernel
of its own for such passes (`[continued_prompts]`). A stalled pass takes no energy. Servers that
send warm-up prompts of other lengths are between `warm` and `fresh`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from simulators.catalog.engine import load_engine
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import load_model
from simulators.composition.replica import FRAMEWORKS, NOTHING, load_runtime
from simulators.core.calibration import read_calibration
from simulators.core.errors import Infeasible
from simulators.core.folder import once
from simulators.serving.demand.requests import Requests
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import ReplicaState
from simulators.serving.options import FRESH
from simulators.serving.point import ServingPoint

CALIBRATION = Path(__file__).parent / "calibration" / "first_use.toml"

PASS, CONTINUED = "pass_s", "continued_s"
"""Names of the fitted times in the calibration."""


Stalls = Mapping[str, Mapping[str, Mapping[str, float]]]
"""Fitted times in seconds, by framework and architecture."""


def fitted_stalls() -> Stalls:
    """Return the fitted times of all frameworks."""
    found: Stalls = once(read_calibration, CALIBRATION)["stall"]
    return found


def stall_s(
    point: ServingPoint,
    asked: Requests,
    known: Stalls | None = None,
) -> float:
    """Return the seconds by which the first prompts of a server wait longer; 0 if it is warm.

    `known` replaces the fitted times.

    Raises:
        Infeasible: no start of the engine was measured on the architecture, or requests are not
            those of a closed loop without sessions.
    """
    if point.measurement.server != FRESH:
        return 0.0
    if not asked.clients or asked.session is not None or point.pools.prefill_gpus:
        raise Infeasible(
            "fresh_server_needs_clients",
            "measurement.server=fresh describes a closed loop of clients on one pool of replicas",
        )
    framework, architecture = (
        load_runtime(point.runtime).framework,
        load_gpu(point.gpu).architecture,
    )
    if framework in FRAMEWORKS and load_engine(framework).warms_prompts:
        return 0.0
    times = (fitted_stalls() if known is None else known).get(framework, {}).get(architecture)
    if times is None:
        raise Infeasible(
            "no_start_was_measured",
            f"no start of {framework or point.runtime} was measured on {architecture}; write "
            "measurement.server=warm",
        )
    return times[PASS] + times.get(CONTINUED, 0.0) * compiles_continued(point, asked)


def compiles_continued(point: ServingPoint, asked: Requests) -> bool:
    """Return whether the first prompts are cut, and another kernel continues a cut prompt.

    First prompts are cut if those of a rank exceed the token budget.
    """
    framework = load_runtime(point.runtime).framework
    if framework not in FRAMEWORKS or point.speculation.method != NOTHING:
        return False
    own = load_engine(framework).continued_prompts
    is_own = (
        load_model(point.model).is_latent
        and load_gpu(point.gpu).architecture in own.get("architectures", ())
        and point.runtime in own.get("runtimes", ())
    )
    first_tokens = float(asked.prompt_tokens[: asked.clients].sum())
    return is_own and first_tokens > point.token_budget * point.replicas * point.attention_dp


def after_stall(state: ReplicaState, stalled_s: float) -> ReplicaState:
    """Return the state of a closed loop whose first pass took some seconds longer.

    Requests of the first round get their first token later, and all else happens later.
    """
    if not stalled_s:
        return state
    times, log = state.times.copy(), state.log.copy()
    arrival = times[:, at.ARRIVAL]
    is_first = arrival <= arrival.min()
    later = {
        at.ARRIVAL: ~is_first,
        at.SENT: ~is_first,
        at.SCHEDULED: times[:, at.SCHEDULED] > times[:, at.SCHEDULED].min(),
    }
    for column in (at.ARRIVAL, at.SENT, at.SCHEDULED, at.FIRST_TOKEN, at.LAST_TOKEN, at.COMPLETED):
        happened = times[:, column] >= 0.0
        times[:, column] += stalled_s * (happened & later.get(column, True))
    times_of_batches = [at.LOG_COLUMNS.index(name) for name in ("formed_s", "end_s")]
    log[: int(state.clock[at.LOG_ROWS]), times_of_batches] += stalled_s
    return state._replace(times=times, log=log)
