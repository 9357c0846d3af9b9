"""The operators that one H100 was timed at in a step of an image network, in the order they ran."""

from __future__ import annotations

from pathlib import Path

from lab.stages.traced import BACKWARD, TimedOperator
from lab.tables.rows import read_records
from simulators.workload.precision import BYTES

TRACE = "training_modern/triosim_h100_op_trace.parquet"
GPU, NUMBER = "h100_sxm", BYTES["fp32"]
HOLDERS = {
    "ConvolutionBackward0": slice(1, 3),
    "CudnnBatchNormBackward0": slice(1, 3),
    "AddmmBackward0": slice(0, 2),
}
"""Which outputs of a backward operator are gradients of weights."""


def read_trace(reference: Path, network: str) -> list[TimedOperator]:
    """Return the operators of a network's step."""
    return [
        TimedOperator(
            phase=row["stage"],
            seconds=1e-6 * row["Operator_cudatime"],
            output_bytes=NUMBER * sum(_sizes(row["OutputSize"])[:1]),
            gradient_bytes=NUMBER * _weights(row["OperatorName"], row["OutputSize"]),
            is_cut=bool(row["tpflag"]),
        )
        for row in read_records(reference / TRACE, network=network)
    ]


def gradient_bytes(trace: list[TimedOperator]) -> float:
    """Return the bytes of all gradients of weights."""
    return sum(one.gradient_bytes for one in trace if one.phase == BACKWARD)


def _weights(name: str, sizes: str) -> int:
    """Return the numbers of an operator's gradients of weights."""
    where = HOLDERS.get(name.rpartition(" ")[2])
    return sum(_sizes(sizes)[where]) if where else 0


def _sizes(text: str) -> list[int]:
    """Return the sizes of tensors as the trace writes them: [1; 2; 3]."""
    return [int(size) for size in text.strip("[]").split(";") if size.strip()]
