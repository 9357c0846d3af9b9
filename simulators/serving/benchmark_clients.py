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
    source="tables of github.com/ai-dynamo/aiconfigurator; their recipe is not public",
    inferred=(
        "fixed lengths: from rows of SGLang, which are locked in waves",
        "ten requests of a client: as InferenceX asks",
        "prompts of 8,192 tokens at once under SGLang: its default on GPUs of this memory",
        "2,048 tokens of an iteration of vLLM: from times to the first token; its default where "
        "the program around it does not say that it is a server",
        "no API server in front: from times to the first token",
    ),
    budgets={"vllm": 2048, "sglang": 8192},
    frontend=NONE,
)
"""Of vLLM and SGLang."""

NVIDIA_TRTLLM = Client(
    name="NVIDIA's gap analyses of TensorRT-LLM",
    length_spread=0.0,
    requests=10,
    source=NVIDIA.source,
    inferred=(
        "fixed lengths, and room for one prompt in an iteration: from times to the first token, "
        "which hardly grow with the number of clients",
        "ten requests of a client: as InferenceX asks",
    ),
    budgets={"trtllm": 0},
)
