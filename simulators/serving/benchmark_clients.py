"""How the programs that measured public deployments ask: their lengths and how often they ask.

With lengths that are all the same, requests that start together end together. Under an engine that
runs prompts first a closed loop stays locked in waves then, which drawn lengths dissolve.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from simulators.serving.point import AUTO


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
