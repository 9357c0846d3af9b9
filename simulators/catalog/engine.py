"""A serving engine's documentation: its options, the schedulers it has, how it spells precisions.

The sheets stand beside what writes its command line, in `deploy/engines/`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from simulators.catalog.sheet import fill
from simulators.core.folder import ENGINES, read_toml


@dataclass(frozen=True, kw_only=True)
class ServingEngine:
    """What an engine can be told, as its documentation says."""

    name: str
    title: str = ""  # as its makers write it, if not so
    command: tuple[str, ...]  # what starts a server; the model's repository follows
    image: str
    port: int
    schedulers: tuple[str, ...]  # that form batches as it does, its own first
    optional_schedulers: tuple[str, ...] = ()  # others that it can be told to follow
    vendors: tuple[str, ...]  # of GPUs that it runs on
    runtime: str = ""  # whose times it has; unless said, the one of its name
    max_sequences: int  # that run at a time unless it is told otherwise
    block_sizes: tuple[int, ...]  # tokens of a KV block
    options: tuple[str, ...]  # all that it documents
    keys: tuple[str, ...] = ()  # of the YAML file that an option names
    dynamo_model: str = ""  # the option by which a Dynamo worker of it is told the model
    kv_connector: tuple[str, ...] = ()  # what it is told to pass KV caches between pools
    dtypes: Mapping[str, tuple[str, ...]]  # the words for a precision; none: the checkpoint says it
    kv_dtypes: Mapping[str, tuple[str, ...]]
    remarks: Mapping[str, str] = field(default_factory=dict)  # what else a precision needs
    source: str
    read: str  # when


def load_engine(name: str) -> ServingEngine:
    """Return the engine of that name or TOML path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a field, or has one that means nothing.

    >>> load_engine("vllm").schedulers[0]
    'vllm_v1'
    """
    return ENGINES.load(name, _engine)


REFERENCE = "vllm"
"""Whose host and kernels a scheduler has that no engine ships: research ones were published as
changes of it."""


def runtime_of(scheduler: str) -> str:
    """Return the runtime of the engine that forms batches by a scheduler.

    >>> runtime_of("sglang"), runtime_of("vllm_v1"), runtime_of("orca")
    ('sglang', 'vllm', 'vllm')
    """
    engines = map(load_engine, ENGINES.names())
    found = (engine for engine in engines if scheduler in engine.schedulers)
    engine = next(found, None)
    return REFERENCE if engine is None else engine.runtime or engine.name


def _engine(path: Path) -> ServingEngine:
    return fill(ServingEngine, read_toml(path), path, "serving engine")
