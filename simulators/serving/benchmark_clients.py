"""How the programs that measured public deployments ask: their lengths and how often they ask.

With lengths that are all the same, requests that start together end together. Under an engine that
runs prompts first a closed loop stays locked in waves then, which drawn lengths dissolve.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulators.serving.point import AUTO, NONE


@dataclass(frozen=True)
class Client:
    """A closed loop: each client asks again as soon as it is answered, the first all at once."""

    name: str
    length_spread: float  # drawn evenly from the stated ones down to this share less; 0: fixed
    requests: int  # of each client; those that warm an engine up are over before they start
    source: str  # who says so
    inferred: tuple[str, ...] = ()  # what nobody says, and why it is believed
    frontend: str = AUTO
    budgets: dict[str, int] = field(default_factory=dict, hash=False)  # unlike the usual, by engine
    beside_prompt: dict[str, int] = field(
        default_factory=dict, hash=False
    )  # tokens of an iteration
    # beyond one prompt and a token of every client, by engine, where it is told so

    @property
    def mean_length(self) -> float:
        """Of lengths over the stated ones."""
        return 1.0 - self.length_spread / 2.0


INFERENCEX = Client(
    name="InferenceX",
    length_spread=0.2,
    requests=10,
    source="github.com/SemiAnalysisAI/InferenceX, benchmarks/single_node: --random-range-ratio "
    "0.8, --request-rate inf, --max-concurrency C, 10 C prompts, 2 C to warm up, --ignore-eos",
)
"""Also of what is not known to be measured otherwise."""

NVIDIA = Client(
    name="NVIDIA's gap analyses",
    length_spread=0.0,
    requests=10,
    source="tables of github.com/ai-dynamo/aiconfigurator, src/aiconfigurator/generator: "
    "rule_plugin/benchmark/vllm.rule (max_num_tokens = max_batch_size + isl + 1500)",
    inferred=(
        "fixed lengths: from rows of SGLang, which are locked in waves",
        "ten requests of a client: as InferenceX asks",
        "prompts of 8,192 tokens at once under SGLang: its default on GPUs of this memory",
        "that vLLM was started by the generator's rule: the rows are the generator's own project's",
        "no API server in front: from times to the first token",
    ),
    budgets={"sglang": 8192},
    beside_prompt={"vllm": 1500},
    frontend=NONE,
)
"""Of vLLM and SGLang."""

NVIDIA_TRTLLM = Client(
    name="NVIDIA's gap analyses of TensorRT-LLM",
    length_spread=0.0,
    requests=10,
    source="tables of github.com/ai-dynamo/aiconfigurator; older than its generator's rules",
    inferred=(
        "fixed lengths, and room for one prompt in an iteration: from times to the first token, "
        "which hardly grow with the number of clients",
        "ten requests of a client: as InferenceX asks",
    ),
    budgets={"trtllm": 0},
)
