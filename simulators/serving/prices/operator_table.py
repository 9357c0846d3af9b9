"""VIDUR's own definitions, where ours differ: to compare runs with that simulator event by event.

Agrawal et al., "Vidur: A Large-Scale Simulation Framework for LLM Inference" (2024); read from
microsoft/vidur at 7d47513363ec. KV memory is counted over all layers even under pipeline
parallelism, a batch's tokens as if padded, TPOT is divided by all output tokens; embedding, LM
head, sampling and host time are not counted, and a mixed batch adds its prefill and decode parts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import inf, nan

import numpy as np
from numpy.typing import NDArray

from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import UserError
from simulators.core.jit import Floats, Ints
from simulators.serving.engine import replica as at
from simulators.serving.engine.replica import PRICE, kernel

LAUNCH_MS = 0.02
"""Host time of one collective, added to each of the two all-reduces of a layer."""

GQA_FACTOR = 1.1
"""Attention over more than one request costs this much more where heads share keys and values."""

TOKEN_STEP = 8
"""Linear layers are tabulated at multiples of so many tokens."""

ONCE = (
    "attn_pre_proj", "attn_post_proj", "attn_rope", "input_layernorm", "mlp_up_proj",
    "mlp_down_proj", "mlp_act", "post_attention_layernorm", "add",
)  # fmt: skip
"""Operators of a layer whose time depends on the rounded number of tokens alone."""

KV_SAVE = "attn_kv_cache_save"

LAYERS_AND_GQA = {
    "meta-llama/Llama-2-7b-hf": (32, False),
    "meta-llama/Llama-2-70b-hf": (80, True),
    "meta-llama/Meta-Llama-3-8B": (32, True),
    "meta-llama/Meta-Llama-3-70B": (80, True),
    "codellama/CodeLlama-34b-Instruct-hf": (48, True),
    "internlm/internlm-20b": (60, False),
    "internlm/internlm2-20b": (48, True),
    "microsoft/phi-2": (32, False),
    "Qwen/Qwen-72B": (80, False),
}
"""Shapes of the models VIDUR ships profiles for, from their Hugging Face configurations."""

# Entries of `shape`: where each table begins, and its sides.
(
    _LINEARS, _STAGE_LINEARS, _KV_SAVE, _DECODE, _PREFILL, _ROWS, _SAVED, _DECODES, _CONTEXTS,
    _PASTS, _CHUNKS, _GQA,
) = range(12)  # fmt: skip


def layers_and_gqa(model: str) -> tuple[int, bool]:
    """Return the layers of a model by its Hugging Face name, and whether heads share keys.

    Raises:
        UnknownNameError: neither VIDUR nor the catalog has it.
    """
    if model in LAYERS_AND_GQA:
        return LAYERS_AND_GQA[model]
    known = load_model(model)
    return known.layers, known.kv_heads != known.heads


@dataclass(frozen=True)
class OpTable:
    """The times of one model, cut and GPU, as the price kernel reads them."""

    shape: Ints
    table: Floats


Times = Mapping[str, tuple[Ints, Ints, Floats]]
"""By operator the keys `a` and `b` as in the reference set's op tables, and milliseconds of one
layer; of one call for `all_reduce` and `send_recv`."""


def by_operator(op: NDArray[np.str_], a: Ints, b: Ints, ms: Floats) -> Times:
    """Return the rows of each operator."""
    return {str(name): (a[op == name], b[op == name], ms[op == name]) for name in np.unique(op)}


def op_table(
    times: Times,
    *,
    layers: int,
    grouped: bool,
    tp: int,
    launch_ms: float = LAUNCH_MS,
    rounds_saves: bool = True,
) -> OpTable:
    """Return the price table of a stage of `layers` layers.

    `iteration`, which may be left out, is what the last stage adds to all its layers: the LM head,
    sampling, the host.

    Args:
        times: of every operator. The keys are batch tokens and nothing; of `attn_decode` requests
            and their mean keys; of `attn_prefill` the keys of earlier chunks and the root of the
            summed squares of the chunks.
        layers: of one pipeline stage.
        grouped: whether heads share keys and values.
        tp: tensor parallel degree.
        launch_ms: host time added to each all-reduce.
        rounds_saves: keys and values are saved for nothing but at multiples of eight tokens.

    Raises:
        UserError: an operator is missing.
    """
    needed = [*ONCE, "attn_decode", "attn_prefill", *(["all_reduce"] if tp > 1 else [])]
    if missing := [name for name in needed if name not in times]:
        raise UserError(f"the op table lacks {', '.join(missing)}")
    whole = [*ONCE, *([] if rounds_saves or KV_SAVE not in times else [KV_SAVE])]
    layer = np.sum([_by_tokens(times, name) for name in whole], axis=0)
    if tp > 1:
        layer = layer + 2.0 * (_by_tokens(times, "all_reduce") + launch_ms)
    sends = _by_tokens(times, "send_recv") if "send_recv" in times else np.zeros(layer.size)
    ends = _by_tokens(times, "iteration") if "iteration" in times else np.zeros(layer.size)
    saves = _by_tokens(times, KV_SAVE) * layers if rounds_saves else np.zeros(1)
    decode = _grid(*times["attn_decode"], a_step=1, b_step=at.PAST_STEP) * layers
    prefill = _grid(*times["attn_prefill"], a_step=at.PAST_STEP, b_step=1) * layers
    parts = [layer * layers + ends, layer * layers + sends, saves, decode.ravel(), prefill.ravel()]
    starts = np.cumsum([0, *(part.size for part in parts)])
    sides = (layer.size, saves.size, *decode.shape, *prefill.shape)
    shape = np.array([*starts[:5], *sides, grouped], np.int64)
    return OpTable(shape, np.concatenate(parts) / 1e3)


def _by_tokens(times: Times, name: str) -> Floats:
    """Return milliseconds by tokens divided by `TOKEN_STEP`; what the table lacks is NaN."""
    a, _, ms = times[name]
    out = np.full(a.max() // TOKEN_STEP + 1, np.nan)
    out[a // TOKEN_STEP] = ms
    return out


def _grid(a: Ints, b: Ints, ms: Floats, *, a_step: int, b_step: int) -> Floats:
    """Return milliseconds as a matrix over both keys; what the table lacks is NaN."""
    out = np.full((a.max() // a_step + 1, b.max() // b_step + 1), np.nan)
    out[a // a_step, b // b_step] = ms
    return out


@kernel(PRICE)
def op_price(step: Floats, shape: Ints, table: Floats, price: Floats) -> float:
    """Return the seconds of the last stage: exact look-ups, as VIDUR rounds their keys.

    The time to save keys and values is known at multiples of eight tokens, and taken as none
    elsewhere. What else the table lacks is not a number, and ends the run.
    """
    price[:] = 0.0
    tokens, decodes = int(step[at.TOKENS]), int(step[at.DECODES])
    row = (tokens + TOKEN_STEP - 1) // TOKEN_STEP
    spent = nan if row >= shape[_ROWS] else 0.0
    if tokens % TOKEN_STEP == 0 and row < shape[_SAVED]:
        spent += table[shape[_KV_SAVE] + row]
    if decodes > 0:
        mean = int(step[at.DECODE_KV]) // decodes
        column = (mean + at.PAST_STEP - 1) // at.PAST_STEP
        price[at.UNTIL_KV] = decodes * (column * at.PAST_STEP + 1)
        key = decodes * shape[_CONTEXTS] + column
        known = decodes < shape[_DECODES] and column < shape[_CONTEXTS]
        part = table[shape[_DECODE] + key] if known else nan
        spent += part * GQA_FACTOR if shape[_GQA] == 1 and decodes > 1 else part
    if step[at.PREFILLS] > 0.0:
        chunk = round(step[at.PREFILL_SQUARES] ** 0.5)
        past = int(step[at.PREFILL_PAST]) // at.PAST_STEP
        known = chunk < shape[_CHUNKS] and past < shape[_PASTS]
        part = table[shape[_PREFILL] + past * shape[_CHUNKS] + chunk] if known else nan
        spent += part * GQA_FACTOR if shape[_GQA] == 1 and step[at.PREFILLS] > 1.0 else part
    row = min(row, shape[_ROWS] - 1)
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = spent + table[shape[_STAGE_LINEARS] + row]
    price[at.LAST_STAGE_S] = price[at.BASE_S] = spent + table[shape[_LINEARS] + row]
    return price[at.LAST_STAGE_S]  # type: ignore[no-any-return]


@kernel(PRICE)
def part_price(step: Floats, _shape: Ints, table: Floats, price: Floats) -> float:
    """Return `table[0]` for the prompts of a batch and `table[1]` for its decodes, added.

    The `fixed` timing of AISimulate, which leaves nothing to compare but the scheduler.
    """
    price[:] = 0.0
    spent = table[0] if step[at.PREFILLS] > 0.0 else 0.0
    spent += table[1] if step[at.DECODES] > 0.0 else 0.0
    price[at.STAGE_S] = price[at.STAGE_BASE_S] = spent
    price[at.LAST_STAGE_S] = price[at.BASE_S] = spent
    price[at.UNTIL_KV] = inf
    return spent


def vidur_blocks(
    model: LanguageModel, *, gpu_gib: int, tp: int, pp: int, max_tokens: int, block_size: int
) -> int:
    """Return the KV blocks of a replica by VIDUR's memory planner: fp16, a tenth of memory kept.

    >>> from simulators.catalog.model import load_model
    >>> model = load_model("llama2_7b")
    >>> vidur_blocks(model, gpu_gib=80, tp=1, pp=1, max_tokens=4096, block_size=16)
    7424
    """
    layer = model.attention_parameters + model.dense_ffn_parameters
    weights = 2.0 * layer * model.layers / pp / tp
    memory = gpu_gib * 2.0**30 * (1.0 - 0.1) - weights
    heads = -(-model.kv_heads // tp)
    request = 2 * 2 * model.head_dim * heads * max_tokens * model.layers
    return (max_tokens // block_size) * int(memory // request) * pp
