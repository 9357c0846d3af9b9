"""A design becomes the command that starts it: vLLM, SGLang, TensorRT-LLM, Dynamo, Kubernetes.

What an engine can be told stands in `engines/*.toml` with its source; every option that is written
here is looked up there. A design that no engine can run says why.
"""

from __future__ import annotations

import functools
import json
import math
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from simulators.catalog.cluster import cluster_for
from simulators.catalog.gpu import load_gpu
from simulators.catalog.model import LanguageModel, load_model
from simulators.core.errors import UserError
from simulators.core.folder import read_toml
from simulators.serving.deployment import deployment_of
from simulators.serving.point import CACHED, SWAP, ServingPoint
from simulators.workload.llm.memory import weight_bytes

ENGINES = ("vllm", "sglang", "trtllm")
TARGETS = (*ENGINES, "dynamo", "kubernetes")
ANY_HOST = "0.0.0.0"  # noqa: S104 - within a pod, whose service decides who may come
_RUNS = {
    "vllm": ("vllm",),
    "sarathi": ("vllm", "sglang"),
    "vllm_v1": ("vllm",),
    "sglang": ("sglang",),
    "trtllm": ("trtllm",),
}
"""Which engines form batches as a scheduler does; an engine's own scheduler bears its name."""


@dataclass(frozen=True)
class Launch:
    """One replica's command line, and what stands beside it.

    `options` are the words after the model; `file` is the text of a YAML file that the command
    names, or empty.
    """

    engine: str
    repository: str
    options: tuple[str, ...]
    nodes: int
    gpus: int
    file: str = ""

    @property
    def command(self) -> list[str]:
        """All the words of the command."""
        start = list(_engine(self.engine)["command"])
        named = ["--model-path", self.repository] if self.engine == "sglang" else [self.repository]
        return [*start, *named, *self.options]


def deployment(point: ServingPoint, target: str, name: str = "") -> str:
    """Return the text that deploys a design.

    Args:
        point: the design.
        target: one of `TARGETS`; or empty for the engine that the scheduler models.
        name: what a comment calls the design: the space and key it was found under.

    Raises:
        UserError: no engine runs such a design, or this one does not; says why.
    """
    engine = target if target in ENGINES else engine_of(point)
    launch = launch_of(point, engine)
    header = f"# {name or 'design'}: {point.model} on {point.gpu}, {point.replicas} replica(s) of "
    header += f"{launch.gpus} GPU(s)\n" + "".join(f"# {line}\n" for line in _remarks(point, engine))
    if target == "kubernetes":
        return header + _kubernetes(launch, point)
    if target == "dynamo":
        return header + _dynamo(launch, point)
    return header + _shell(launch, point)


def _remarks(point: ServingPoint, engine: str) -> Iterator[str]:
    """Yield what no option of the command says about the precision."""
    known = _engine(engine)
    if point.dtype not in ("fp16", "bf16") and not known["dtypes"][point.dtype]:
        yield f"the precision is that of the checkpoint: name one in {point.dtype}"
    if point.dtype in known.get("remarks", {}):
        yield known["remarks"][point.dtype]


def engine_of(point: ServingPoint) -> str:
    """Return the engine that forms batches as the design's scheduler does.

    Raises:
        UserError: none does.
    """
    if point.scheduler not in _RUNS:
        raise UserError(
            f"no engine of today batches as '{point.scheduler}' does, so there is nothing to "
            f"deploy; sweep scheduler over {', '.join(_RUNS)}"
        )
    return _RUNS[point.scheduler][0]


def launch_of(point: ServingPoint, engine: str) -> Launch:
    """Return the command of one replica.

    Raises:
        UserError: the engine cannot be told what the design asks.
        Infeasible: the design cannot exist.
    """
    engine_of(point)
    if engine not in _RUNS[point.scheduler]:
        raise UserError(
            f"{engine} does not batch as '{point.scheduler}' does; that is "
            f"{', '.join(_RUNS[point.scheduler])}"
        )
    deployment_of(point)  # raises where the design cannot exist
    _check_what_if(point)
    model, known = load_model(point.model), _engine(engine)
    if point.block_size not in known["block_sizes"]:
        raise UserError(
            f"{engine} has no KV blocks of {point.block_size} tokens; "
            f"it has {', '.join(map(str, known['block_sizes']))}"
        )
    options, file = {"vllm": _vllm, "sglang": _sglang, "trtllm": _trtllm}[engine](point, model)
    words = [*_spelt(known, "dtypes", point.dtype, engine), *options]
    words += _spelt(known, "kv_dtypes", point.kv_dtype, engine)
    for word in words:
        if word.startswith("--") and word not in known["options"]:
            raise AssertionError(f"{engine} documents no option {word}")
    gpus = point.tp * point.pp * point.attention_dp
    per_node = cluster_for(point.cluster, load_gpu(point.gpu)).gpus_per_node
    return Launch(engine, _repository(model), tuple(words), math.ceil(gpus / per_node), gpus, file)


def _check_what_if(point: ServingPoint) -> None:
    scales = ("sm_scale", "clock_scale", "bandwidth_scale", "l2_scale")
    if changed := [n for n in scales if getattr(point, n) != 1.0]:
        raise UserError(f"a what-if device cannot be deployed: {', '.join(changed)} is not 1")


def _vllm(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    whole = point.scheduler == "vllm"
    budget = point.max_batch_tokens if whole else point.chunk_size
    context = point.max_context or model.max_context
    if budget < point.max_batch:
        raise UserError(
            f"vLLM wants a token budget of at least max_batch: {budget} tokens for "
            f"{point.max_batch} requests"
        )
    if whole and budget < context:
        context = budget  # a whole prompt must fit in one batch
    words = [
        *_pairs(
            {
                "--tensor-parallel-size": point.tp,
                "--pipeline-parallel-size": point.pp,
                "--data-parallel-size": point.attention_dp,
            },
            least=2,
        ),
        *_pairs(
            {
                "--max-num-seqs": point.max_batch,
                "--max-num-batched-tokens": budget,
                "--max-model-len": context,
                "--block-size": point.block_size,
                "--gpu-memory-utilization": point.memory_fraction,
            }
        ),
        "--no-enable-chunked-prefill" if whole else "--enable-chunked-prefill",
        "--enable-prefix-caching"
        if point.turns > 1 or point.preemption == CACHED
        else "--no-enable-prefix-caching",
    ]
    if point.ep > 1:
        words.append("--enable-expert-parallel")
    if point.runtime.startswith("eager"):
        words.append("--enforce-eager")
    if point.preemption == SWAP:
        words += ["--preemption-mode", "swap", "--swap-space", f"{point.swap_bytes / 2**30:.3g}"]
    return words, ""


def _sglang(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    words = [
        *_pairs({"--tp-size": point.tp * point.attention_dp, "--pp-size": point.pp}, least=2),
        *_pairs({"--ep-size": point.ep, "--dp-size": point.attention_dp}, least=2),
        *_pairs(
            {
                "--max-running-requests": point.max_batch,
                "--chunked-prefill-size": point.chunk_size,
                "--context-length": point.max_context or model.max_context,
                "--page-size": point.block_size,
                "--mem-fraction-static": point.memory_fraction,
                "--schedule-policy": "fcfs",
            }
        ),
    ]
    words += _pairs({"--scheduler-recv-interval": point.poll_interval}, least=2)
    if point.attention_dp > 1:
        words.append("--enable-dp-attention")
    if point.scheduler == "sarathi":
        words.append("--enable-mixed-chunk")
    if point.turns == 1:
        words.append("--disable-radix-cache")
    if point.runtime.startswith("eager"):
        words.append("--disable-cuda-graph")
    return words, ""


def _trtllm(point: ServingPoint, model: LanguageModel) -> tuple[list[str], str]:
    hbm = load_gpu(point.gpu).hbm_bytes
    weights = weight_bytes(model, deployment_of(point).hardware.replica.cut, point.dtype)
    # The engine is told the share of what the weights leave, not of the whole memory.
    free = (point.memory_fraction * hbm - weights) / (hbm - weights)
    words = [
        "--backend", "pytorch",
        *_pairs({"--tp_size": point.tp * point.attention_dp, "--pp_size": point.pp}, least=2),
        *_pairs({"--ep_size": point.ep}, least=2),
        *_pairs(
            {
                "--max_batch_size": point.max_batch,
                "--max_num_tokens": point.chunk_size,
                "--max_seq_len": point.max_context or model.max_context,
                "--kv_cache_free_gpu_memory_fraction": f"{free:.3f}",
                "--extra_llm_api_options": "engine.yaml",
            }
        ),
    ]  # fmt: skip
    lines = ["kv_cache_config:", f"  tokens_per_block: {point.block_size}"]
    if point.kv_dtype == "fp8":
        lines.append("  dtype: fp8")
    lines.append(f"enable_attention_dp: {'true' if point.attention_dp > 1 else 'false'}")
    if not point.runtime.startswith("eager"):
        lines += ["cuda_graph_config:", f"  max_batch_size: {point.max_batch}"]
    return words, "\n".join(lines) + "\n"


def _pairs(options: Mapping[str, object], least: float = -math.inf) -> list[str]:
    """Return options with their values; numbers below `least` are the engine's default."""
    found: list[str] = []
    for name, value in options.items():
        if not (isinstance(value, int) and value < least):
            found += [name, str(value)]
    return found


def _spelt(known: Mapping[str, Any], table: str, precision: str, engine: str) -> list[str]:
    if precision not in known[table]:
        what = "weights" if table == "dtypes" else "a KV cache"
        raise UserError(
            f"{engine} documents no {what} in {precision}; it has {', '.join(known[table])}"
        )
    return list(known[table][precision])


def _repository(model: LanguageModel) -> str:
    """Return the Hugging Face repository that the model's sheet names as its source."""
    found = re.search(r"([\w.-]+/[\w.-]+) config\.json", model.source)
    if not found:
        raise UserError(
            f"the sheet of '{model.name}' names no repository; write one into its `source`, as in "
            '"meta-llama/Llama-2-70b-hf config.json"'
        )
    return found[1]


@functools.cache
def _engine(name: str) -> dict[str, Any]:
    return read_toml(Path(__file__).parent / "engines" / f"{name}.toml")


def _shell(launch: Launch, point: ServingPoint) -> str:
    words = launch.command
    port = _engine(launch.engine)["port"]
    lines, line = [], shlex.quote(words[0])
    for word in words[1:]:
        if word.startswith("--"):
            lines.append(line)
            line = f"    {word}"
        else:
            line += f" {shlex.quote(word)}"
    text = " \\\n".join([*lines, line]) + "\n"
    if launch.file:
        text = f"cat > engine.yaml <<'YAML'\n{launch.file}YAML\n{text}"
    if launch.nodes > 1:
        text = f"# one replica spans {launch.nodes} nodes: join them first (Ray or MPI)\n{text}"
    if point.replicas > 1:
        text += (
            f"# {point.replicas} replicas: run it once per replica with --port {port}, "
            f"{port + 1} ..., behind a router that sends requests by {point.router}\n"
        )
    return text


def _kubernetes(launch: Launch, point: ServingPoint) -> str:
    if launch.nodes > 1:
        raise UserError(
            f"one replica spans {launch.nodes} nodes, which a Kubernetes Deployment cannot hold; "
            "use --target dynamo, or a design whose tp * pp fits in a node"
        )
    engine = _engine(launch.engine)
    name, port = _label(point.model), engine["port"]
    volumes, mounts, extra = _volumes(launch, name)
    words = [w.replace("engine.yaml", "/etc/engine/engine.yaml") for w in launch.command]
    return f"""\
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {name}
spec:
  replicas: {point.replicas}
  selector:
    matchLabels: {{app: {name}}}
  template:
    metadata:
      labels: {{app: {name}}}
    spec:
      containers:
        - name: {launch.engine}
          image: {engine["image"]}
          command: {json.dumps([*words, "--port", str(port), "--host", ANY_HOST])}
          ports:
            - containerPort: {port}
          readinessProbe:
            httpGet: {{path: /health, port: {port}}}
            periodSeconds: 10
            failureThreshold: 180
          resources:
            limits:
              nvidia.com/gpu: {launch.gpus}
          volumeMounts:
            {mounts}
      volumes:
        {volumes}
---
apiVersion: v1
kind: Service
metadata:
  name: {name}
spec:
  selector: {{app: {name}}}
  ports:
    - port: 80
      targetPort: {port}
{extra}"""


def _volumes(launch: Launch, name: str) -> tuple[str, str, str]:
    """Return a pod's volumes, where they are mounted, and the manifest of what one holds."""
    volumes = "- {name: shm, emptyDir: {medium: Memory, sizeLimit: 16Gi}}"
    mounts = "- {name: shm, mountPath: /dev/shm}"
    if not launch.file:
        return volumes, mounts, ""
    volumes += f"\n        - {{name: engine, configMap: {{name: {name}-engine}}}}"
    mounts += "\n            - {name: engine, mountPath: /etc/engine}"
    indented = "".join(f"    {line}\n" for line in launch.file.splitlines())
    extra = (
        f"---\napiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: {name}-engine\n"
        f"data:\n  engine.yaml: |\n{indented}"
    )
    return volumes, mounts, extra


def _dynamo(launch: Launch, point: ServingPoint) -> str:
    name, image = _label(point.model), f"nvcr.io/nvidia/ai-dynamo/{launch.engine}-runtime:latest"
    if launch.engine == "trtllm":
        raise UserError(
            "Dynamo's TensorRT-LLM workers take their engine's settings in a file of their own; "
            "use --target trtllm or kubernetes"
        )
    flag = "--model" if launch.engine == "vllm" else "--model-path"
    args = [flag, launch.repository, *launch.options]
    spread = f"\n      multinode:\n        nodeCount: {launch.nodes}" if launch.nodes > 1 else ""
    return f"""\
apiVersion: nvidia.com/v1beta1
kind: DynamoGraphDeployment
metadata:
  name: {name}
spec:
  components:
    - name: Frontend
      type: frontend
      replicas: 1
      podTemplate:
        spec:
          containers:
            - name: main
              image: {image}
    - name: worker
      type: worker
      replicas: {point.replicas}{spread}
      podTemplate:
        spec:
          containers:
            - name: main
              image: {image}
              command: ["python3", "-m", "dynamo.{launch.engine}"]
              args: {json.dumps(args)}
              resources:
                limits:
                  nvidia.com/gpu: "{math.ceil(launch.gpus / launch.nodes)}"
"""


def _label(name: str) -> str:
    """Return a name as Kubernetes allows it."""
    return re.sub(r"[^a-z0-9]+", "-", Path(name).stem.lower()).strip("-")
