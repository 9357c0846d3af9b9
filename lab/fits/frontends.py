"""What servers add to the first token, fitted to deployments whose engines are simulated first.

    python -m lab.fits.frontends

The rest of a measured time to the first token, when the engine's own is subtracted, is a sum of a
time per request, one per prompt token and some iterations. A framework's three numbers make the
mean |log(predicted / measured)| least, by least squares with weights that are corrected in rounds;
groups count as the square root of their rows. Engines run with the numbers of `composition` that
were fitted without the group they predict, and each group is left out here in turn as well.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from lab.tables.deployments import SILICON, silicon
from simulators.composition.deployments import FRAMEWORKS, Deployed, by_replica
from simulators.composition.positive_fit import group_weights, non_negative
from simulators.core.calibration import reference_folder, sha256_of, write_calibration
from simulators.core.errors import UserError
from simulators.core.jit import Floats
from simulators.serving.engine.frontend import CALIBRATION, NUMBERS
from simulators.serving.measured_deployments import point_of
from simulators.serving.point import NONE
from simulators.serving.run import Shelf
from simulators.serving.simulator import simulate

Numbers = tuple[float, float, float]  # as the fields of a Frontend

TAILS = (0.05, 0.95)
"""Of measured over predicted times. The next group lies outside the range of `n` seen ones more
often than one row in ten, so the logarithm is stretched by `1 + 1 / n`."""

ROUNDS = 30
LEAST_ERROR = 0.02
"""Errors below this weigh alike, so that no single row decides."""


@dataclass(frozen=True)
class Rows:
    """Deployments with what their engines took, by our account."""

    deployed: Sequence[Deployed]
    ttft_s: Floats
    tpot_s: Floats

    def of(self, which: NDArray[np.bool_]) -> Rows:
        """Return some of the rows."""
        kept = [d for d, w in zip(self.deployed, which, strict=True) if w]
        return Rows(kept, self.ttft_s[which], self.tpot_s[which])


def engines_alone(rows: Sequence[Deployed]) -> Rows:
    """Return what the engines of deployments take, without servers, their groups left out."""
    times = np.empty((len(rows), 2))
    for indices in by_replica(rows).values():
        shelf = Shelf()
        for i in indices:
            point = replace(point_of(rows[i], left_out=True), frontend=NONE)
            found = simulate(point, shelf)
            times[i] = found.ttft_mean_s, found.tpot_mean_s
    return Rows(rows, times[:, 0], times[:, 1])


def fit_frontend(rows: Rows) -> Numbers:
    """Return seconds per request, seconds per prompt token, and iterations."""
    measured = np.array([d.ttft_s for d in rows.deployed])
    prompts = np.array([d.mean_prompt for d in rows.deployed])
    design = np.stack([np.ones_like(prompts), prompts, rows.tpot_s], axis=-1)
    scale = np.array([measured.mean(), measured.mean() / prompts.mean(), 1.0])
    scale[2] = measured.mean() / rows.tpot_s.mean()
    weight = group_weights([d.group for d in rows.deployed])
    soft, linear = np.ones_like(measured), np.ones_like(measured)
    values = np.zeros(3)
    for _ in range(ROUNDS):
        w = weight * soft * linear
        a = design * (w / measured)[:, None] * scale
        values = non_negative(a, w * (1.0 - rows.ttft_s / measured)) * scale
        ratio = (rows.ttft_s + design @ values) / measured
        error = np.log(ratio)
        soft = (np.abs(error) + LEAST_ERROR) ** -0.5
        linear = np.where(np.abs(ratio - 1.0) > 1e-6, np.abs(error / (ratio - 1.0 + 1e-12)), 1.0)
    request_s, token_s, iterations = values
    return float(request_s), float(token_s), float(iterations)


def predicted_ttft_s(rows: Rows, numbers: Numbers) -> Floats:
    """Return times to the first token behind a server of given numbers."""
    request_s, token_s, iterations = numbers
    prompts = np.array([d.mean_prompt for d in rows.deployed])
    return rows.ttft_s + request_s + token_s * prompts + iterations * rows.tpot_s


def fit_all(reference: Path) -> None:
    """Fit the servers of all frameworks to the deployments of the reference folder."""
    rows = engines_alone([row for row in silicon(reference) if not row.excluded])
    framework = np.array([d.framework for d in rows.deployed])
    group = np.array([d.group for d in rows.deployed])
    numbers: dict[tuple[str, str], Numbers] = {}
    held_out_s = np.empty(framework.size)
    for name in FRAMEWORKS:
        own = framework == name
        numbers[name, ""] = fit_frontend(rows.of(own))
        for left_out in np.unique(group[own]):
            held_out = own & (group == left_out)
            numbers[name, str(left_out)] = fit_frontend(rows.of(own & ~held_out))
            held_out_s[held_out] = predicted_ttft_s(rows.of(held_out), numbers[name, str(left_out)])
    ratios = {
        "tpot": np.array([d.tpot_s for d in rows.deployed]) / rows.tpot_s,
        "ttft": np.array([d.ttft_s for d in rows.deployed]) / held_out_s,
    }
    body = (
        "# Written by `python -m lab.fits.frontends`. To change a number, change the "
        f'fit.\n[provenance]\nmeasured = "{SILICON}"\n'
        f'sha256 = "{sha256_of(reference / SILICON)}"\nrows = {framework.size}\n'
        'split = "each group of a model and a GPU in turn; [without] holds the numbers"\n'
        f"held_out_rows = {framework.size}\n"
        f"held_out_mape = {np.abs(1.0 / ratios['ttft'] - 1.0).mean():.3f}\n"
    )
    for (name, left_out), found in numbers.items():
        others = (framework == name) & (group != left_out)
        stretch = 1.0 + 1.0 / np.unique(group[others]).size
        title = f'without."{left_out}".{name}' if left_out else f"frontend.{name}"
        body += _table(title, found, {n: r[others] ** stretch for n, r in ratios.items()})
    write_calibration(CALIBRATION, body)


def _table(title: str, numbers: Numbers, ratios: Mapping[str, Floats]) -> str:
    """Return one server as TOML, with the bands that the ratios of groups left out give."""
    text = f"\n[{title}]\n"
    text += "".join(f"{n} = {v:.4g}\n" for n, v in zip(NUMBERS, numbers, strict=True))
    for metric, ratio in ratios.items():
        lo, hi = np.quantile(ratio, TAILS)
        text += f"{metric}_band = [{lo:.4g}, {hi:.4g}]\n"
    return text


def main() -> None:
    """Fit the servers of all frameworks from the reference folder."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--reference", type=Path, default=reference_folder())
    reference = parser.parse_args().reference
    if reference is None:
        raise UserError("no reference folder; set SWEEPER_REFERENCE or give --reference")
    fit_all(reference)


if __name__ == "__main__":
    main()
