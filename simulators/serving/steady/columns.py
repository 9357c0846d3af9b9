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
    found: Floats  # cached prefix tokens
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
    checked: Floats  # tokens per decode: one and its draft tokens
    decodes: Floats  # iterations per request: fewer than later tokens with drafts
    seats: Floats  # most requests of one batch in flight
    chunked: NDArray[np.bool_]
    tokens: Floats  # of an iteration with prompts
    rate: Floats  # arrivals per second and replica; NaN: closed loop
    arrival_scv: Floats  # squared coefficient of variation of the gaps
    clients: Floats  # of a closed loop, per replica; inf: seats always full
    think_s: Floats  # of each client before its next request


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
