"""Language models: sizes of the layers, and numbers of parameters derived from the sizes.

The fields correspond to a Hugging Face `config.json`, which may be given by path instead of a name.
Numbers of parameters are computed from the sizes and agree with the published numbers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from simulators.catalog.sheet import fill, positive
from simulators.core.errors import UserError
from simulators.core.folder import MODELS, read_toml, reader

MXFP4 = "mxfp4"
"""4-bit numbers with one exponent per 32 numbers (OCP Microscaling Formats, 2023)."""


OVERLAPPED = 4
"""Compression ratio of DeepSeek-V4 whose windows overlap, and whose keys an indexer selects."""
CONVOLVED = 4
"""Tokens seen by the short convolution of a layer with a state."""

WHOLE = 1e-6
"""Tolerance of a number of full layers: `attention_every` may be a fraction, as in 62 / 10."""

CHATS = ("chat", "sharegpt", "sharegpt_v3")
"""Workloads of chats."""

STATE_RULES = ("delta", "kda", "ssd")
"""State updates: gated delta rule (Yang et al., 2024), Kimi delta attention, with a gate per number
of a key (Kimi Team, "Kimi Linear", 2025), Mamba-2 (Dao, Gu, 2024)."""


@dataclass(frozen=True, kw_only=True)
class ModelVariant:
    """Another model with the shapes, and so the speed, of a model: an older or derived release."""

    source: str
    aliases: tuple[str, ...] = ()
    max_context: int = 0  # 0: equal
    formats: tuple[str, ...] = ()  # empty: equal


@dataclass(frozen=True, kw_only=True)
class LanguageModel:
    """A decoder-only transformer: dense, grouped-query, mixture of experts or latent attention."""

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    ffn: int  # width of a dense feed-forward block
    vocab: int
    max_context: int
    gated_ffn: bool = True  # a gate beside the up projection (SwiGLU)
    tied_embeddings: bool = False  # the LM head is the embedding
    norm: str = "rms_norm"  # or layer_norm, which has a bias
    qk_norm: bool = False  # queries and keys are normalised per head
    whole_qk_norm: bool = False  # over all heads at once, so tensor ranks all-reduce the squares
    biases: bool = False  # every linear layer has a bias (GPT-2, GPT-3)
    attention_sinks: bool = False  # a learned logit per head in the softmax (gpt-oss)
    qkv_biases: bool = False  # only the query, key and value projections have a bias (Qwen2)
    learned_positions: int = 0  # rows of a position table; 0: rotary
    experts: int = 0  # routed experts of a mixture layer; 0: dense
    top_k: int = 0  # routed experts per token
    expert_groups: int = 1  # of neighbouring experts
    groups_per_token: int = 1  # groups that contain all experts of a token
    shared_experts: int = 0  # experts of every token
    shared_ffn: int = 0  # width of all shared experts; 0: that many routed ones
    expert_ffn: int = 0  # width of one expert
    expert_hidden: int = 0  # inputs of routed experts, projected from and to `hidden`; 0: hidden
    dense_layers: int = 0  # leading layers without experts, in a mixture
    bare_layers: int = 0  # layers of attention or a state alone, without a feed-forward block
    kv_lora_rank: int = 0  # latent attention: width of the cached latent; 0: keys and values
    q_lora_rank: int = 0  # 0: queries are projected directly
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0  # 0: equal to head_dim
    index_heads: int = 0  # of the indexer that selects the keys of sparse latent attention
    index_head_dim: int = 0
    index_top_k: int = 0  # selected keys per query; 0: all keys
    index_block: int = 1  # neighboring keys that an indexer selects together
    compress_ratios: tuple[int, ...] = ()  # by layer: tokens per compressed key, beside a window
    output_rank: int = 0  # of the output projection of each group of heads; 0: one projection
    output_groups: int = 1
    residual_streams: int = 1  # mixed around every block (hyper-connections)
    index_layers: int = 0  # with an own indexer; other layers use the keys of the last; 0: all
    attention_gate: bool = False  # a gate, projected like the queries, multiplies the output
    values_are_keys: bool = False  # full attention projects no values (Gemma 4)
    attention_every: float = 1.0  # layers per layer of full attention; others: window or state
    window: int = 0  # of the other layers, in tokens; 0: these layers keep a state
    window_kv_heads: int = 0  # 0: equal to kv_heads
    window_head_dim: int = 0  # 0: equal to head_dim
    state_rule: str = "delta"  # update of a state, one of `STATE_RULES`
    state_key_heads: int = 0  # key heads of a state layer; groups of Mamba-2
    state_value_heads: int = 0
    state_head_dim: int = 0  # of keys; the state size of Mamba-2
    state_value_dim: int = 0  # of values; 0: equal to keys
    state_gate_rank: int = 0  # of the projection of a state layer's output gate; 0: full
    residual_layers: int = 0  # per block whose outputs later layers attend to; 0: plain sums
    quantised_ffn: int = 0  # padded FFN width of public 4-bit checkpoints; 0: not padded
    fp8_channels: bool = False  # the public 8-bit checkpoint has scales per channel, not per block
    published_experts: str = ""  # only format of the public checkpoint's experts; empty: several
    apart_in: tuple[str, ...] = ()  # engines that do not fuse norms, sums and quantization
    formats: tuple[str, ...] = ()  # precisions of the official checkpoint; empty: bf16
    source: str
    aliases: tuple[str, ...] = ()
    variants: Mapping[str, ModelVariant] = field(default_factory=dict, compare=False)

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are cached as one latent per token (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def has_states(self) -> bool:
        """Whether most layers keep a fixed-size state instead of keys and values."""
        return self.attention_every > 1 and self.window == 0

    @property
    def state_layers(self) -> int:
        """Layers that keep a state instead of keys and values."""
        return self.layers - self.full_layers if self.has_states else 0

    @property
    def full_layers(self) -> int:
        """Layers with attention to all earlier tokens."""
        return round(self.layers / max(self.attention_every, 1.0))

    @property
    def windowed(self) -> LanguageModel:
        """A model whose layers all attend with the head sizes of this model's windowed layers."""
        heads, width = self.window_kv_heads or self.kv_heads, self.window_head_dim or self.head_dim
        return replace(self, kv_heads=heads, head_dim=width, values_are_keys=False)

    @property
    def value_dim(self) -> int:
        """Numbers of a value per head of attention that is not latent."""
        return self.v_head_dim or self.head_dim

    @property
    def expert_width(self) -> int:
        """Numbers of a token that routed experts read and write."""
        return self.expert_hidden or self.hidden

    @property
    def shared_width(self) -> int:
        """Width of the shared experts together."""
        return self.shared_ffn or self.shared_experts * self.expert_ffn

    @property
    def state_parameters(self) -> int:
        """Weights of a state layer: queries, keys, values, gate, output, decays, convolution."""
        h, keys, values, rank = (
            self.hidden,
            self.state_keys,
            self.state_values,
            self.state_gate_rank,
        )
        decays = h * self.state_value_heads * (2 if self.state_rule == "delta" else 1)
        if self.state_rule == "kda":  # one decay per number of a key, from a narrow projection
            decays += (h + keys) * self.state_head_dim
        gate = (h + values) * rank if rank else h * values
        convolution = CONVOLVED * (2 * keys + values)
        return h * 2 * (keys + values) + gate + decays + convolution

    @property
    def state_keys(self) -> int:
        """Width of a token's key, and of its query, over all heads of a state layer."""
        return self.state_key_heads * self.state_head_dim

    @property
    def state_values(self) -> int:
        """Width of a token's value over all heads of a state layer."""
        return self.state_value_heads * (self.state_value_dim or self.state_head_dim)

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        return self.layers - self.dense_layers - self.bare_layers if self.experts else 0

    @property
    def index_share(self) -> float:
        """Share of layers with an indexer of their own."""
        share = self.index_layers / max(1, self.layers)  # an MTP module is one layer of a model
        return min(1.0, share) if self.index_layers else 1.0

    @property
    def parameters(self) -> int:
        """Number of weights.

        >>> load_model("llama2_7b").parameters
        6738415616
        """
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """Number of weights used per token; in a dense model, all weights."""
        return self._parameters(self.top_k)

    @property
    def attention_parameters(self) -> int:
        """Weights of one layer's projections around attention, with biases and inner norms."""
        if self.is_latent:
            head = self.qk_nope_head_dim + self.qk_rope_head_dim
            rank, h = self.q_lora_rank, self.hidden
            queries = h * rank + rank + rank * self.heads * head if rank else h * self.heads * head
            latent = h * (self.kv_lora_rank + self.qk_rope_head_dim) + self.kv_lora_rank
            up = self.kv_lora_rank * self.heads * (self.qk_nope_head_dim + self.v_head_dim)
            if self.compress_ratios:  # the norm is over the whole key
                up = self.qk_rope_head_dim + self.compressor_parameters
            gate = h * self.heads * self.v_head_dim * self.attention_gate
            return queries + latent + up + gate + self.output_parameters + self.index_parameters
        values = 0 if self.values_are_keys else self.kv_heads * self.value_dim
        qkv = (self.heads + self.kv_heads) * self.head_dim + values
        gate = self.heads * self.value_dim * self.attention_gate
        biases = (qkv if self.biases or self.qkv_biases else 0) + (self.hidden * self.biases)
        projections = self.hidden * (qkv + gate) + self.output_parameters
        return projections + biases + self.qk_norm_parameters + self.index_parameters

    @property
    def output_parameters(self) -> int:
        """Weights of one layer's output projection, or of its two of low rank."""
        groups = self.output_groups * self.output_rank * self.hidden
        return self.heads * self.value_dim * (self.output_rank or self.hidden) + groups

    @property
    def compressor_parameters(self) -> int:
        """Weights of compressors, by layer: values, gates, positions (twice if overlapped)."""
        ratios = ((n, 2 if n == OVERLAPPED else 1) for n in self.compress_ratios if n)
        rows = sum(twice * (2 * self.hidden + ratio) + 1 for ratio, twice in ratios)
        return round(rows * self.head_dim / max(1, len(self.compress_ratios)))

    @property
    def qk_norm_parameters(self) -> int:
        """Weights of one layer's norms of queries and keys."""
        heads = self.heads + self.kv_heads if self.whole_qk_norm else 2
        return heads * self.head_dim * self.qk_norm

    @property
    def index_parameters(self) -> int:
        """Weights of an indexer, by layer: queries, key with its norm, weights of heads."""
        queries = (self.q_lora_rank or self.hidden) * self.index_heads * self.index_head_dim
        rows = 4 * (self.hidden + 2) + 1 if self.compress_ratios else self.hidden + 2
        key = rows * self.index_head_dim
        weights = queries + key + self.hidden * self.index_heads if self.index_top_k else 0
        return round(weights * self.index_share)

    @property
    def dense_ffn_parameters(self) -> int:
        """Weights of one dense feed-forward block."""
        biases = self.biases * (self.ffn + self.hidden)
        return self._matrices * self.hidden * self.ffn + biases

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert."""
        return self._matrices * self.expert_width * self.expert_ffn

    @property
    def shared_parameters(self) -> int:
        """Weights of the shared experts of one layer."""
        return self._matrices * self.hidden * self.shared_width

    @property
    def norm_parameters(self) -> int:
        """Weights of one norm over the hidden width."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def mixing_parameters(self) -> int:
        """Weights that mix the residual streams, or score earlier blocks, before one block."""
        streams = self.residual_streams
        scores = self.hidden * (self.residual_layers > 0)
        return (2 + streams) * streams**2 * self.hidden * (streams > 1) + scores

    @property
    def _matrices(self) -> int:
        return 3 if self.gated_ffn else 2

    def _parameters(self, experts_counted: int) -> int:
        router = self.hidden * (self.experts + 2 * self.expert_hidden)
        mixture = router + experts_counted * self.expert_parameters + self.shared_parameters
        dense = self.layers - self.bare_layers - self.expert_layers
        ffn = self.expert_layers * mixture + dense * self.dense_ffn_parameters
        blocks = 2 * self.layers - self.bare_layers
        norms = (blocks + 1) * self.norm_parameters + blocks * self.mixing_parameters
        tables = self.vocab * (1 if self.tied_embeddings else 2) + self.learned_positions
        attention = self.full_layers * self.attention_parameters
        others = self.state_parameters if self.has_states else self.windowed.attention_parameters
        attention += (self.layers - self.full_layers) * others
        return attention + ffn + norms + tables * self.hidden


def load_model(name: str) -> LanguageModel:
    """Return a model by name, alias, TOML path or path of a Hugging Face `config.json`.

    The name of a variant gives its source and context with the shapes and the `name` of its file.

    Raises:
        UnknownNameError: the name is unknown.
        UserError: the file lacks a field, or a field is invalid.

    >>> load_model("llama2_70b").kv_heads
    8
    """
    model = MODELS.load(name, _model)
    if not model.variants or name == model.name:
        return model
    variant = model.variants.get(MODELS.name_of(name))
    if variant is None:
        return model
    context, formats = variant.max_context, variant.formats
    return replace(
        model,
        source=variant.source,
        aliases=variant.aliases,
        max_context=context or model.max_context,
        formats=formats or model.formats,
    )


def checkpoint_of(model: LanguageModel, workload: str = "") -> str:
    """Return the Hugging Face repository of a model; empty if its `source` names none.

    Chats get the checkpoint with a chat template, if an alias of the model names one.

    >>> checkpoint_of(load_model("llama2_7b")), checkpoint_of(load_model("llama2_7b"), "chat")
    ('meta-llama/Llama-2-7b-hf', 'meta-llama/Llama-2-7b-chat-hf')
    """
    found = re.search(r"([\w.-]+/[\w.-]+) config\.json", model.source)
    if not found or workload not in CHATS:
        return found[1] if found else ""
    base = re.sub(r"(-hf|-v[\d.]+)$", "", found[1])
    chat = re.compile(rf"{re.escape(base)}-(instruct|chat|it)(-hf|-v[\d.]+)?", re.I)
    return next(filter(chat.fullmatch, model.aliases), found[1])


def _model(path: Path) -> LanguageModel:
    is_config = path.suffix == ".json"
    sheet = reader("huggingface", "sheet_of_config")(path) if is_config else read_toml(path)
    if "family" in sheet:
        raise UserError(
            f"model '{path.stem}' is no decoder; `simulator: composition` prices passes over it"
        )
    return _checked(path, fill(LanguageModel, sheet, path, "model"))


def _checked(path: Path, m: LanguageModel) -> LanguageModel:
    for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_context"):
        positive(getattr(m, size), path, size)
    groups, chosen, local = m.expert_groups, m.groups_per_token, m.windowed.kv_heads
    rules = {
        f"{m.heads} heads cannot share {m.kv_heads} kv_heads evenly": m.heads % m.kv_heads,
        f"{m.heads} heads cannot share {local} window_kv_heads evenly": m.heads % local,
        f"top_k is {m.top_k}; it must be within 1..{m.experts}": m.experts
        and not 0 < m.top_k <= m.experts,
        f"expert_groups is {groups} and groups_per_token {chosen}; groups divide the experts, and "
        "a token chooses some of them": not 0 < chosen <= groups or m.experts % groups,
        "a mixture of experts also needs expert_ffn": m.experts and m.expert_ffn < 1,
        "an indexer needs index_heads and index_head_dim": m.index_top_k
        and not (m.index_heads and m.index_head_dim),
        f"attention_every is {m.attention_every:g}; at least 1": m.attention_every < 1,
        f"attention_every is {m.attention_every:g}: {m.layers} layers have no whole number of "
        f"full layers; {m.layers / max(m.full_layers, 1)!r} gives {m.full_layers}": abs(
            m.layers / max(m.attention_every, 1.0) - m.full_layers
        )
        > WHOLE,
        "layers that keep a state need state_value_heads, or a window": m.has_states
        and not m.state_value_heads,
        f"state_rule is '{m.state_rule}'; it must be {' or '.join(STATE_RULES)}": m.state_rule
        not in STATE_RULES,
        f"published_experts is '{m.published_experts}', and not {MXFP4}": m.published_experts
        not in ("", MXFP4),
        f"norm is '{m.norm}'; it must be rms_norm or layer_norm": m.norm
        not in ("rms_norm", "layer_norm"),
        f"bare_layers is {m.bare_layers}, of {m.layers} layers": m.bare_layers >= m.layers,
    }
    if broken := [sentence for sentence, is_broken in rules.items() if is_broken]:
        raise UserError(f"{path}: {broken[0]}")
    return m
