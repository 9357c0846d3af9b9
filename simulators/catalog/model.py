"""Language models: sizes of the layers, and counts of parameters derived from the sizes.

The fields are those of a Hugging Face `config.json`, under the words of the field, and such a file
may be given by path in place of a name. Parameters are counted from the shape, and agree with the
published counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from simulators.catalog.sheet import fill, positive
from simulators.core.errors import UserError
from simulators.core.folder import MODELS, read_toml, reader

MXFP4 = "mxfp4"
"""A format of 4-bit numbers that share an exponent by 32 (OCP Microscaling Formats, 2023)."""


STATE_RULES = ("delta", "ssd")
"""How a state takes in a token: gated delta rule (Yang et al., 2024), Mamba-2 (Dao, Gu, 2024)."""


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
    whole_qk_norm: bool = False  # over all heads at once, so that tensor ranks add up their squares
    biases: bool = False  # every linear layer has one (GPT-2, GPT-3)
    attention_sinks: bool = False  # softmax may settle on none of the keys (gpt-oss)
    qkv_biases: bool = False  # only the query, key and value projections have one (Qwen2)
    learned_positions: int = 0  # rows of a position table; 0: rotary
    experts: int = 0  # routed experts of a mixture layer; 0: dense
    top_k: int = 0  # experts a token visits
    expert_groups: int = 1  # of neighbouring experts
    groups_per_token: int = 1  # groups that all experts of a token come from
    shared_experts: int = 0  # experts every token visits
    expert_ffn: int = 0  # width of one expert
    dense_layers: int = 0  # leading layers without experts, in a mixture
    kv_lora_rank: int = 0  # latent attention: width of the cached latent; 0: keys and values
    q_lora_rank: int = 0  # 0: queries are projected directly
    qk_rope_head_dim: int = 0
    qk_nope_head_dim: int = 0
    v_head_dim: int = 0
    index_heads: int = 0  # of a light indexer that chooses the keys of latent attention
    index_head_dim: int = 0
    index_top_k: int = 0  # keys it chooses for a query; 0: all are attended to
    attention_every: int = 1  # every so many layers see all tokens; the others a window or a state
    window: int = 0  # tokens that the others see; 0: they keep a state instead
    state_rule: str = "delta"  # of a layer that keeps a state: gated delta rule, or ssd of Mamba-2
    state_key_heads: int = 0  # of it; groups of Mamba-2
    state_value_heads: int = 0
    state_head_dim: int = 0  # of keys; the state size of Mamba-2
    state_value_dim: int = 0  # of values; 0: that of keys
    quantised_ffn: int = 0  # that width in public 4-bit checkpoints, where they pad it; 0: the same
    fp8_channels: bool = False  # its public 8-bit checkpoint scales channels, not blocks
    published_experts: str = ""  # the one format of the public checkpoint's experts; empty: several
    apart_in: tuple[str, ...] = ()  # engines whose code for it has norms, sums and quantising apart
    formats: tuple[str, ...] = ()  # precisions its makers' own checkpoint can be run in; none: bf16
    source: str
    aliases: tuple[str, ...] = ()

    @property
    def is_latent(self) -> bool:
        """Whether keys and values are cached as one latent per token (MLA)."""
        return self.kv_lora_rank > 0

    @property
    def has_states(self) -> bool:
        """Whether most layers keep a state of fixed size instead of keys and values."""
        return self.attention_every > 1 and self.window == 0

    @property
    def state_layers(self) -> int:
        """Layers that keep a state instead of keys and values."""
        return self.layers - self.layers // self.attention_every if self.has_states else 0

    @property
    def state_parameters(self) -> int:
        """Weights of one such layer's projections: queries, keys, values, their gate, output."""
        return self.hidden * (2 * self.state_keys + 3 * self.state_values)

    @property
    def state_keys(self) -> int:
        """Numbers of a token's key, and of its query, over all heads of such a layer."""
        return self.state_key_heads * self.state_head_dim

    @property
    def state_values(self) -> int:
        """Numbers of a token's value over all heads of such a layer."""
        return self.state_value_heads * (self.state_value_dim or self.state_head_dim)

    @property
    def expert_layers(self) -> int:
        """Layers whose feed-forward block is a mixture of experts."""
        return self.layers - self.dense_layers if self.experts else 0

    @property
    def parameters(self) -> int:
        """Every weight, counted from the shape.

        >>> load_model("llama2_7b").parameters
        6738415616
        """
        return self._parameters(self.experts)

    @property
    def active_parameters(self) -> int:
        """The weights that one token passes through; in a dense model, all of them."""
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
            out = self.heads * self.v_head_dim * h
            return queries + latent + up + out + self.index_parameters
        qkv = (self.heads + 2 * self.kv_heads) * self.head_dim
        out = self.heads * self.head_dim
        biases = (qkv if self.biases or self.qkv_biases else 0) + (self.hidden * self.biases)
        return self.hidden * (qkv + out) + biases + self.qk_norm_parameters

    @property
    def qk_norm_parameters(self) -> int:
        """Weights of one layer's norms of queries and keys."""
        heads = self.heads + self.kv_heads if self.whole_qk_norm else 2
        return heads * self.head_dim * self.qk_norm

    @property
    def index_parameters(self) -> int:
        """Weights of one layer's indexer: queries, key with its norm, weights of heads."""
        queries = self.q_lora_rank * self.index_heads * self.index_head_dim
        key = (self.hidden + 2) * self.index_head_dim
        return queries + key + self.hidden * self.index_heads if self.index_top_k else 0

    @property
    def dense_ffn_parameters(self) -> int:
        """Weights of one dense feed-forward block."""
        biases = self.biases * (self.ffn + self.hidden)
        return self._matrices * self.hidden * self.ffn + biases

    @property
    def expert_parameters(self) -> int:
        """Weights of one expert."""
        return self._matrices * self.hidden * self.expert_ffn

    @property
    def norm_parameters(self) -> int:
        """Weights of one norm over the hidden width."""
        return self.hidden * (2 if self.norm == "layer_norm" else 1)

    @property
    def _matrices(self) -> int:
        return 3 if self.gated_ffn else 2

    def _parameters(self, experts_counted: int) -> int:
        router = self.hidden * self.experts
        mixture = router + (experts_counted + self.shared_experts) * self.expert_parameters
        ffn = self.expert_layers * mixture
        ffn += (self.layers - self.expert_layers) * self.dense_ffn_parameters
        norms = (2 * self.layers + 1) * self.norm_parameters
        tables = self.vocab * (1 if self.tied_embeddings else 2) + self.learned_positions
        attention = (self.layers - self.state_layers) * self.attention_parameters
        attention += self.state_layers * self.state_parameters
        return attention + ffn + norms + tables * self.hidden


def load_model(name: str) -> LanguageModel:
    """Return the model of that name, alias, TOML path or Hugging Face `config.json` path.

    Raises:
        UnknownNameError: nothing answers to the name.
        UserError: the file lacks a field, or has one that means nothing.

    >>> load_model("llama2_70b").kv_heads
    8
    """
    return MODELS.load(name, _model)


def _model(path: Path) -> LanguageModel:
    is_config = path.suffix == ".json"
    sheet = reader("huggingface", "sheet_of_config")(path) if is_config else read_toml(path)
    if "family" in sheet:
        raise UserError(
            f"model '{path.stem}' is no decoder; `simulator: composition` prices passes over it"
        )
    return _checked(path, fill(LanguageModel, sheet, path, "model"))


def _checked(path: Path, model: LanguageModel) -> LanguageModel:
    """Return the model, or raise UserError for impossible sizes in the file."""
    for size in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "max_context"):
        positive(getattr(model, size), path, size)
    if model.heads % model.kv_heads:
        raise UserError(
            f"{path}: {model.heads} heads cannot share {model.kv_heads} kv_heads evenly"
        )
    if model.experts and not 0 < model.top_k <= model.experts:
        raise UserError(f"{path}: top_k is {model.top_k}; it must be within 1..{model.experts}")
    groups, chosen = model.expert_groups, model.groups_per_token
    if not 0 < chosen <= groups or model.experts % groups:
        raise UserError(
            f"{path}: expert_groups is {groups} and groups_per_token {chosen}; groups divide the "
            "experts, and a token chooses some of them"
        )
    if model.experts and model.expert_ffn < 1:
        raise UserError(f"{path}: a mixture of experts also needs expert_ffn")
    if model.index_top_k and not (model.q_lora_rank and model.index_heads and model.index_head_dim):
        raise UserError(f"{path}: an indexer needs q_lora_rank, index_heads and index_head_dim")
    if model.attention_every < 1:
        raise UserError(f"{path}: attention_every is {model.attention_every}; at least 1")
    if model.has_states and not model.state_value_heads:
        raise UserError(f"{path}: layers that keep a state need state_value_heads, or a window")
    if model.state_rule not in STATE_RULES:
        known = " or ".join(STATE_RULES)
        raise UserError(f"{path}: state_rule is '{model.state_rule}'; it must be {known}")
    if model.published_experts not in ("", MXFP4):
        raise UserError(
            f"{path}: published_experts is '{model.published_experts}', and not {MXFP4}"
        )
    if model.norm not in ("rms_norm", "layer_norm"):
        raise UserError(f"{path}: norm is '{model.norm}'; it must be rms_norm or layer_norm")
    return model
