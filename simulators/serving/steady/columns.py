"""Inputs of the steady state per row: request lengths, queueing station, deployment."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulators.core.jit import Floats, Ints


@dataclass(frozen=True, kw_only=True)
class Lengths:
    """Mean request lengths of each row; NaN where no request fits into the context."""

    prompt: Floats  # tokens that are computed
    output: Floats
    found: Floats  # tokens before a prompt that a prefix cache has
    pairs: Floats  # query-key pairs a prompt scores
    keys: Floats  # tokens a decode reads
    prompt_scv: Floats  # squared coefficient of variation: variance over squared mean
    output_scv: Floats
    longest: Floats  # prompt, in tokens
    fitting: Floats  # share of the requests that fit into the context


@dataclass(frozen=True, kw_only=True)
class Station:
    """Limits and arrivals of one replica, per row."""

    stages: Floats
    checked: Floats  # tokens that a decode passes through the model: its own and those drafted
    decodes: Floats  # of a request: one for each later token, or fewer where tokens are drafted
    seats: Floats  # most requests of one batch in flight
    chunked: NDArray[np.bool_]
    tokens: Floats  # of an iteration with prompts
    rate: Floats  # arrivals per second and replica; NaN: an answer brings the next request
    arrival_scv: Floats  # squared coefficient of variation of the gaps
    clients: Floats  # that ask again when they are answered, per replica; more than enough: inf
    think_s: Floats  # how long each of them waits before


@dataclass(frozen=True, kw_only=True)
class SteadyDesign:
    """The replica and the load of each row."""

    station: Station
    lengths: Lengths
    kind: Ints  # equal where lengths are
    kv_tokens: Floats  # that fit beside weights and activations
    kv_blocks: Floats
    gpus: Floats  # of one replica
    replicas: Floats
    usd_per_gpu_hour: Floats  # NaN: unknown
    flops_per_token: Floats
    peak_flops: Floats  # of one GPU
