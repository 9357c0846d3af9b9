"""Static batches under TensorRT-LLM's session runtime of 2023 and 2024, as NVIDIA published them.

A batch is one prefill of all prompts and decodes of all of them. Copies of a row in a later release
are left out, and rows whose unit is unclear.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lab.tables.catalog_names import model_name, replica_of
from lab.tables.records import file_of, records
from simulators.composition.replica import Replica, Runtime
from simulators.workload.llm.parallelism import Parallelism

STATIC = file_of("static_batches")
SESSION = "trtllm_session"

SHARED_SINCE = "v0.8.0"
"""First release with a kernel in which query heads share their reads (XQA); before, attention read
the keys of a group for each of its heads."""

UNSURE = "v0.7.1"
"""In this release some rows of several GPUs can only be rates per GPU, and do not say so."""


@dataclass(frozen=True)
class StaticBatch:
    """One measured batch, and its output tokens per second."""

    version: str
    model: str
    gpu: str
    precision: str
    tp: int
    batch: int
    prompt: int
    output: int
    tokens_per_s: float

    @property
    def group(self) -> str:
        """A model on a GPU."""
        return f"{self.model}.{self.gpu}"

    @property
    def shares_keys(self) -> bool:
        """Whether the heads of a group read keys together."""
        return self.version >= SHARED_SINCE

    @property
    def measured_s(self) -> float:
        """Duration of the batch."""
        return self.batch * self.output / self.tokens_per_s

    def replica(self, runtime: Runtime) -> Replica:
        """Return the replica that ran the batch, under a runtime."""
        precision = {"dtype": self.precision, "kv_dtype": self.precision}
        cut = Parallelism(tp=self.tp)
        return replica_of(self.model, self.gpu, cut=cut, runtime=runtime, **precision)


def static_rows(reference: Path) -> list[StaticBatch]:
    """Return the static batches of the reference folder, each as its last release has it."""
    found = {}
    for row in sorted(records(reference, "static_batches"), key=lambda row: str(row.doc_tag)):
        if row.doc_tag == UNSURE and row.tp_size > 1:
            continue
        load = (int(row.tp_size), int(row.batch_size), int(row.isl), int(row.osl))
        engine, rate = (
            (model_name(row.model), row.gpu, row.precision),
            row.output_tokens_per_s_total,
        )
        found[engine, load] = StaticBatch(row.doc_tag, *engine, *load, rate)
    return list(found.values())
