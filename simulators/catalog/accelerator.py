"""Spatial accelerators: storage levels, outermost first, above an array of multipliers.

A level has a mesh of instances, with width, depth and words per cycle of one instance, and the
energy of an access: in pJ, or by the technology table.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.sheet import POSITIVE, fill, positive
from simulators.core.errors import UserError
from simulators.core.folder import ACCELERATORS, read_toml

KINDS = ("dram", "sram", "register")
TENSORS = ("Weights", "Inputs", "Outputs")

MAPPINGS = SEARCHED, CLOSED_FORM = "searched", "closed_form"
"""Operators are mapped by a search, or by closed-form costs, a thousand times faster."""

ARITHMETIC = FLOAT, INTEGER = "float", "integer"
"""Numbers that a multiplier takes. Words of 8 bits are integers."""

CHANGES = "?"
"""Separator between the name of a data sheet and the changes of a what-if accelerator."""


@dataclass(frozen=True, kw_only=True)
class Level:
    """One storage level.

    `may_keep` lists sets of tensors; the mapper selects one set to hold, other tensors bypass the
    level. Bandwidths are words per cycle and instance; None is unlimited.
    """

    name: str
    mesh: tuple[int, ...] = (1, 1)
    kind: str = "sram"
    width_bits: int = dataclasses.field(metadata=POSITIVE)
    word_bits: int = dataclasses.field(metadata=POSITIVE)
    depth: int | None = dataclasses.field(default=None, metadata=POSITIVE)
    banks: int = dataclasses.field(default=1, metadata=POSITIVE)
    # 2: double buffered, so half is filled while the other half is read
    buffering: int = dataclasses.field(default=1, metadata=POSITIVE)
    reserved_words: int = 0  # capacity that layers cannot use
    holds: tuple[
        str, ...
    ] = ()  # tensors of a layer that are wholly in the level, in reserved words
    read_words_per_cycle: float | None = dataclasses.field(default=None, metadata=POSITIVE)
    write_words_per_cycle: float | None = dataclasses.field(default=None, metadata=POSITIVE)
    shared_words_per_cycle: float | None = None
    dram_type: str = ""
    energy_pj: Mapping[str, float] = dataclasses.field(default_factory=dict, hash=False)
    energy_depth: int | None = None  # depth for which the energies are stated; None: `depth`
    hop_pj_per_word: float = 0.0  # of the network to the next level
    staged: bool = False  # the network forks into columns, then rows: no diagonal multicast
    may_keep: tuple[tuple[str, ...], ...] = (TENSORS,)

    @property
    def instances(self) -> int:
        """Instances on the chip."""
        return self.mesh[0] * self.mesh[1]

    @property
    def block_words(self) -> int:
        """Words per physical access."""
        return max(1, self.width_bits // self.word_bits)

    @property
    def capacity_words(self) -> int | None:
        """Capacity of one instance in words, per buffer; None is unlimited."""
        if self.depth is None:
            return None
        words = self.depth * self.width_bits // self.word_bits // self.buffering
        return words - self.reserved_words


@dataclass(frozen=True, kw_only=True)
class Mac:
    """The multipliers below the innermost level."""

    mesh: tuple[int, ...] = (1, 1)
    word_bits: int = 8
    arithmetic: str = FLOAT  # of words wider than 8 bits, in the technology table
    energy_pj: float | None = None  # None: from the technology table
    leak_pj_per_cycle: float = 0.0

    @property
    def instances(self) -> int:
        """Multipliers on the chip."""
        return self.mesh[0] * self.mesh[1]


@dataclass(frozen=True, kw_only=True)
class Accelerator:
    """A spatial accelerator."""

    name: str
    source: str
    design: str = ""  # design whose published chips calibrate the step from mapping to silicon
    clock_hz: float = 1e9
    node_nm: float = 45.0
    energy_node_nm: float | None = None  # node for which energies are stated; None: `node_nm`
    mac: Mac
    levels: tuple[Level, ...]
    dataflow: str = "any"  # the only dataflow that the wiring supports
    mapping: str = SEARCHED  # one of `MAPPINGS`
    aliases: tuple[str, ...] = ()


def load_accelerator(name: str) -> Accelerator:
    """Return an accelerator by name, alias or TOML path.

    A name may end with changes, as written by `what_if_name`.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, a field or a change is invalid, or levels do not nest.

    >>> load_accelerator("eyeriss_like").mac.instances
    168
    >>> load_accelerator("eyeriss_like?pe_rows=24").mac.instances
    336
    """
    found = ACCELERATORS.load(sheet_name(name), _accelerator)
    asked = name.partition(CHANGES)[2]
    if not asked:
        return found
    try:
        return resized(found, Changes.read(asked))
    except UserError as error:
        raise UserError(f"accelerator '{name}': {error}") from error


def sheet_name(name: str) -> str:
    """Return the name of the data sheet, without the changes of a what-if accelerator."""
    return name.partition(CHANGES)[0]


def what_if_name(name: str, changes: Changes) -> str:
    """Return the name of an accelerator with changes.

    >>> what_if_name("tpu_like", Changes(pe_rows=256))
    'tpu_like?pe_rows=256'
    >>> what_if_name("tpu_like?pe_rows=256", Changes(mapping=CLOSED_FORM))
    'tpu_like?pe_rows=256&mapping=closed_form'
    """
    sheet, _, before = name.partition(CHANGES)
    asked = "&".join(filter(None, (before, str(changes))))
    return f"{sheet}{CHANGES}{asked}" if asked else sheet


def accelerator_of(sheet: Mapping[str, Any], path: Path) -> Accelerator:
    """Return the accelerator of a data sheet. Errors name `path`."""
    found = fill(Accelerator, sheet, path, "accelerator")
    if not found.levels:
        raise UserError(f"{path}: an accelerator needs [[levels]], outermost first")
    positive(found.clock_hz, path, "clock_hz")
    positive(found.node_nm, path, "node_nm")
    if found.mapping not in MAPPINGS:
        raise UserError(f"{path}: mapping is {found.mapping!r}, not {' or '.join(MAPPINGS)}")
    if found.mac.arithmetic not in ARITHMETIC:
        asked = found.mac.arithmetic
        raise UserError(f"{path}: mac.arithmetic is {asked!r}, not {' or '.join(ARITHMETIC)}")
    _check(found, path)
    return found


@dataclass(frozen=True, kw_only=True)
class Changes:
    """Changes of a what-if accelerator. Values of 0, scales of 1 and "" change nothing.

    Raises:
        UserError: a number or a mapping is invalid.
    """

    pe_rows: int = 0  # rows (Y) of the array, and of every mesh with as many rows
    pe_cols: int = 0  # columns (X) of the array
    buffer_scale: float = 1.0  # depth of the shared on-chip levels, relative
    spad_scale: float = 1.0  # depth of the levels inside the array, relative
    dram_type: str = ""  # of the outermost level
    node_nm: float = 0.0  # technology node
    clock_hz: float = 0.0  # of the whole accelerator
    buffer_rate_scale: float = 1.0  # words per cycle of the shared on-chip levels, relative
    memory_bytes_per_s: float = 0.0  # reads and writes of the outermost level together
    buffer_bytes: float = 0.0  # capacity of the outermost shared on-chip level
    ports: int = 0  # of shared on-chip levels: 1 for reads and writes together, 2 for one each
    buffering: int = 0  # copies of a tile in shared on-chip levels: 2 is double buffering
    dataflow: str = ""  # the only dataflow that the wiring supports
    mapping: str = ""  # one of `MAPPINGS`

    def __post_init__(self) -> None:
        for name in ("buffer_scale", "spad_scale", "buffer_rate_scale"):
            if not 0 < getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}; it must be positive")
        for name in (
            *("pe_rows", "pe_cols", "node_nm", "clock_hz", "memory_bytes_per_s"),
            *("buffer_bytes", "ports", "buffering"),
        ):
            if not 0 <= getattr(self, name) < math.inf:
                raise UserError(f"{name} is {getattr(self, name)}; it must not be negative")
        for name in ("ports", "buffering"):
            if getattr(self, name) not in (0, 1, 2):
                raise UserError(
                    f"{name} is {getattr(self, name)}; it must be 1, 2, or 0: unchanged"
                )
        if self.mapping not in ("", *MAPPINGS):
            raise UserError(f"mapping is {self.mapping!r}, not {' or '.join(MAPPINGS)}")

    @classmethod
    def read(cls, text: str) -> Changes:
        """Return the changes of a text that `str` has written.

        Raises:
            UserError: a name is unknown, or a value is not a number.
        """
        kinds: dict[str, Any] = {f.name: type(f.default) for f in dataclasses.fields(cls)}
        found: dict[str, Any] = {}
        for part in filter(None, text.split("&")):
            name, _, value = part.partition("=")
            if name not in kinds:
                known = ", ".join(kinds)
                raise UserError(f"an accelerator cannot change '{name}'; it can {known}")
            try:
                found[name] = kinds[name](value)
            except ValueError as error:
                raise UserError(f"{name} is '{value}', no number") from error
        return cls(**found)

    def __str__(self) -> str:
        values = [(f.name, getattr(self, f.name), f.default) for f in dataclasses.fields(self)]
        changed = {name: value for name, value, default in values if value != default}
        return "&".join(
            f"{name}={value:.10g}" if isinstance(value, float) else f"{name}={value}"
            for name, value in changed.items()
        )


def resized(accelerator: Accelerator, changes: Changes) -> Accelerator:
    """Return a what-if accelerator.

    Stated energies keep the node and depth for which they were stated, so that the technology table
    can scale them. A change of the memory type drops them.

    Raises:
        UserError: the changed meshes do not divide each other.
    """
    was = accelerator.mac.mesh
    now = (changes.pe_cols or was[0], changes.pe_rows or was[1])
    clock_hz = changes.clock_hz or accelerator.clock_hz
    found = dataclasses.replace(
        accelerator,
        clock_hz=clock_hz,
        dataflow=changes.dataflow or accelerator.dataflow,
        mapping=changes.mapping or accelerator.mapping,
        node_nm=changes.node_nm or accelerator.node_nm,
        energy_node_nm=accelerator.energy_node_nm or accelerator.node_nm,
        mac=dataclasses.replace(accelerator.mac, mesh=now),
        levels=tuple(
            _resized_level(one, changes, clock_hz, was, now) for one in accelerator.levels
        ),
    )
    if changes.buffer_bytes:
        found = _with_buffer(found, changes.buffer_bytes)
    _check_meshes(found, accelerator.name)
    return found


def _with_buffer(accelerator: Accelerator, capacity_bytes: float) -> Accelerator:
    levels = list(accelerator.levels)
    for k, level in enumerate(levels[1:], 1):
        if level.instances == 1:
            depth = math.floor(capacity_bytes * 8 / level.width_bits)
            if depth < 1:
                raise UserError(
                    f"buffer_bytes is {capacity_bytes:g}; a row of {level.name} has "
                    f"{level.width_bits / 8:g} bytes"
                )
            levels[k] = dataclasses.replace(level, depth=depth)
            return dataclasses.replace(accelerator, levels=tuple(levels))
    raise UserError(f"{accelerator.name} has no shared buffer, so buffer_bytes has no effect")


def _resized_level(
    old: Level, changes: Changes, clock_hz: float, was: tuple[int, ...], now: tuple[int, int]
) -> Level:
    """Return a changed level. A mesh side as long as the array's side changes with the array."""
    is_shared = old.instances == 1
    scale = changes.buffer_scale if is_shared else changes.spad_scale
    sides = zip(old.mesh, was, now, strict=True)
    found = dataclasses.replace(
        old,
        mesh=old.mesh if old.mesh == (1, 1) else tuple(n if s == w else s for s, w, n in sides),
        depth=None if old.depth is None else round(old.depth * scale),
        energy_depth=old.energy_depth or old.depth,
    )
    if old.kind != "dram":
        if not is_shared:
            return found
        stated = {n: rate for n in _RATES if (rate := getattr(old, n))}
        faster: dict[str, Any] = {n: rate * changes.buffer_rate_scale for n, rate in stated.items()}
        if changes.buffering:
            faster["buffering"] = changes.buffering
        return dataclasses.replace(found, **faster | _ports(faster, changes.ports))
    if changes.dram_type and changes.dram_type != old.dram_type:
        found = dataclasses.replace(found, dram_type=changes.dram_type, energy_pj={})
    if changes.memory_bytes_per_s:
        words = changes.memory_bytes_per_s * 8 / old.word_bits / clock_hz
        rates: dict[str, Any] = dict.fromkeys(_RATES) | {"shared_words_per_cycle": words}
        found = dataclasses.replace(found, **rates)
    return found


def _ports(rates: Mapping[str, float], ports: int) -> dict[str, float | None]:
    """Return the rates of one port for reads and writes together, or of one port for each."""
    read, write, shared = (rates.get(name) for name in _RATES)
    if ports == 1 and read and write:
        return dict(zip(_RATES, (None, None, max(read, write)), strict=True))
    if ports == 2 and shared and not (read or write):
        return dict(zip(_RATES, (shared, shared, None), strict=True))
    return {}


_RATES = ("read_words_per_cycle", "write_words_per_cycle", "shared_words_per_cycle")


def _accelerator(path: Path) -> Accelerator:
    return accelerator_of(read_toml(path), path)


def _check(accelerator: Accelerator, path: Path) -> None:
    names = [level.name for level in accelerator.levels]
    if len(set(names)) != len(names):
        raise UserError(f"{path}: two levels have one name: {', '.join(names)}")
    for level in accelerator.levels:
        where = f"level {level.name}"
        if level.kind not in KINDS:
            raise UserError(f"{path}: {where}: kind is {level.kind!r}, not {', '.join(KINDS)}")
        if level.depth is None and level.kind != "dram":
            raise UserError(f"{path}: {where} needs a depth; only dram is unlimited")
        if unknown := [t for keep in level.may_keep for t in keep if t not in TENSORS]:
            raise UserError(f"{path}: {where} may keep {unknown[0]!r}, not {', '.join(TENSORS)}")
    if not all(set(keep) == set(TENSORS) for keep in accelerator.levels[0].may_keep):
        raise UserError(f"{path}: the outermost level, {names[0]}, must keep every tensor")
    _check_meshes(accelerator, str(path))


def _check_meshes(accelerator: Accelerator, where: str) -> None:
    meshes = [(level.name, level.mesh) for level in accelerator.levels]
    meshes.append(("mac", accelerator.mac.mesh))
    for name, mesh in meshes:
        if len(mesh) != 2 or min(mesh) < 1:
            raise UserError(f"{where}: {name}: mesh is {list(mesh)}; it must be [columns, rows]")
    for (outer, a), (inner, b) in itertools.pairwise(meshes):
        if b[0] % a[0] or b[1] % a[1]:
            raise UserError(
                f"{where}: the mesh of {inner}, {list(b)}, is no multiple of that of {outer}, "
                f"{list(a)}; each instance feeds the same number of inner ones"
            )
