"""What is known of devices: fitted ones of each search space, and files of a user's own.

A user's device is a JSON file that `calibrate` has written: its weights as lists of numbers, a
format number, and what it rests on. Nothing in it is code, and older files stay readable.

A network's latency is nearly a sum of what its layers take, so a device is a vector of weights.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from simulators.core.calibration import read_calibration
from simulators.core.errors import UnknownNameError, UserError
from simulators.core.folder import once
from simulators.core.jit import Floats
from simulators.edge.architectures import FUSED, SPACES

FOLDER = Path(__file__).parent / "calibration"
FORMAT = 2
"""Of format 1 are devices without weights of fused kernels."""

SUFFIX = ".json"
NEEDED = ("format", "search_space", "unit_s", "mean", "noise")

LEAST = 0.02
"""No network is quicker than this share of the mean: degenerate cells, which are no network."""

NINETY = 1.645
"""Standard deviations on either side that hold 90 %."""


@dataclass(frozen=True)
class Weights:
    """A device: its weights, how sure they are, and what they leave unexplained.

    Latency is `unit_s * (mean[0] + features @ mean[1:])`; where `is_log`, its exponential.
    """

    unit_s: float
    mean: Floats
    covariance: Floats
    noise: float
    is_log: bool = False

    def seconds(self, features: Floats) -> tuple[Floats, Floats, Floats]:
        """Return latencies and both ends of their 90 % intervals.

        Features have a row per network.
        """
        design = with_level(features)
        # Sums by rows, not matrix products: those have other last bits in other batches.
        middle = np.sum(design * self.mean, axis=1)
        variance = np.full(middle.size, self.noise**2)
        for column, line in zip(design.T, self.covariance, strict=True):
            variance += column * np.sum(design * line, axis=1)
        reach = NINETY * np.sqrt(variance)
        ends = (middle, middle - reach, middle + reach)
        if self.is_log:
            found = tuple(self.unit_s * np.exp(end) for end in ends)
        else:
            found = tuple(self.unit_s * np.maximum(end, LEAST) for end in ends)
        return found[0], found[1], found[2]


def with_level(features: Floats) -> Floats:
    """Return features behind a column of ones.

    >>> with_level(np.array([[2.0, 3.0]])).tolist()
    [[1.0, 2.0, 3.0]]
    """
    return np.column_stack([np.ones(len(features)), features])


def calibration_of(space: str) -> Path:
    """Return the file of what devices have in common on a search space.

    Raises:
        UnknownNameError: there is no such search space.
    """
    if space not in SPACES:
        raise UnknownNameError("search space", space, tuple(SPACES))
    return FOLDER / f"{space}.toml"


def device(space: str, name: str) -> Weights:
    """Return a device of the calibration, or one of a user's own by the path of its file.

    Raises:
        UnknownNameError: nothing was measured on a device of that name.
        UserError: a file is no device, or one of another search space.
    """
    if name.endswith(SUFFIX):
        return once(_read, Path(name)).of(space)
    known = once(read_calibration, calibration_of(space))["devices"]
    if name not in known:
        raise UnknownNameError(
            "device",
            name,
            tuple(known),
            "One of your own is the path of a file that "
            f"`calibrate` has written from its latencies, such as my_phone{SUFFIX}",
        )
    return _weights(known[name])


class _File(dict[str, Any]):
    """The content of a device's file."""

    def of(self, space: str) -> Weights:
        if self["search_space"] != space:
            raise UserError(
                f"{self['path']} was measured on networks of {self['search_space']}, not of {space}"
            )
        return _weights(self)


def _read(path: Path) -> _File:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise UserError(f"{path} is no JSON: {error}") from error
    if not isinstance(found, dict) or any(name not in found for name in NEEDED):
        raise UserError(
            f"{path} is no device: it lacks {', '.join(NEEDED)}; `calibrate` writes one"
        )
    if not isinstance(found["format"], int):
        raise UserError(f"{path}: format is {found['format']!r}, and no number of one")
    if found["format"] > FORMAT:
        raise UserError(f"{path} is of format {found['format']}; this version reads up to {FORMAT}")
    space = found["search_space"]
    if not isinstance(space, str):
        raise UserError(f"{path}: search_space is {space!r}, and no name")
    known = once(read_calibration, calibration_of(space))["prior"]["mean"]
    lacking = FUSED[space] if found["format"] < 2 else 0
    _check(found, len(known) + 1 - lacking, path)
    for name in [one for one in ("mean", "covariance") if one in found]:
        found[name] = np.pad(np.array(found[name], np.float64), (0, lacking))
    return _File(found, path=path)


def _check(found: Mapping[str, Any], weights: int, path: Path) -> None:
    """Hold a device's numbers to those its search space has: a level and a weight per feature.

    Raises:
        UserError: something is no number, or there are more or fewer of them.
    """
    shapes: dict[str, tuple[int, ...]] = {"unit_s": (), "noise": (), "mean": (weights,)}
    if "covariance" in found:
        shapes["covariance"] = (weights, weights)
    for name, shape in shapes.items():
        try:
            numbers = np.array(found[name], np.float64)
        except (TypeError, ValueError):
            numbers = np.full(shape, np.nan)
        wanted = " by ".join(map(str, shape)) + " numbers" if shape else "a number"
        if numbers.shape != shape or not np.isfinite(numbers).all():
            raise UserError(f"{path}: `{name}` is {wanted}, on networks of {found['search_space']}")


def _weights(found: Mapping[str, Any]) -> Weights:
    mean = np.array(found["mean"], np.float64)
    covariance = found.get("covariance", np.zeros((mean.size, mean.size)))
    return Weights(
        float(found["unit_s"]), mean, np.array(covariance, np.float64), float(found["noise"])
    )
