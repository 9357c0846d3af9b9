"""What people ask for that is known and not modelled, each with a sentence that says so."""

from __future__ import annotations

import re

SENTENCES = {
    r"lookahead": (
        "this drafter is not modelled; speculation has ngram, draft, medusa, eagle, eagle3 and "
        "mtp, and trees by draft_topk"
    ),
    r"spec(ulative)?_?(dec|tok|len|mod)|mtp|multi_token|eagle|medusa": (
        "tokens are drafted as speculation says (ngram, draft, medusa, eagle, eagle3, mtp), so "
        "many as draft_tokens says"
    ),
    r"early_?exit|layer_?skip|mixture_of_depths|token_?prun": (
        "tokens skip layers as exit_depth and exit_spread (early exit), routed_tokens (mixture of "
        "depths), prompt_kept and prune_after (pruned prompts) say, which no engine has a flag for"
    ),
    r"kv_?(evict|prun|compress)": "every key is kept: keys evicted or merged are not modelled",
    r"prefix_cach|cache_hit|kv_reuse": (
        "prompts that begin alike share blocks where prefix_cache is true: of a "
        "system_prompt_tokens, of turns, or of a trace with hash_ids"
    ),
    r"disagg|(prefill|decode)_(workers|replicas)": (
        "separate pools are prefill_gpus and decode_gpus, cut by prefill_tp and decode_tp"
    ),
    r"kv_offload|cpu_offload|nvme|offload": (
        "KV caches leave a GPU by preemption: swap and by prefix_host_bytes, for the host, a "
        "peer GPU or, of prefixes, an SSD (offload_to)"
    ),
    r"^(trainium|inferentia|gaudi|cerebras|groq|apple|tenstorrent)|^m[1-5](_|$)": (
        "its kernels are not modelled: GPUs of NVIDIA and AMD are"
    ),
    r"^(tgi|llama_?cpp|ollama|lmdeploy|deepspeed|mlc|exllama)": (
        "this engine is not modelled: vLLM, SGLang and TensorRT-LLM are"
    ),
    r"^(gguf|q[2-8]_|nf4|int3|exl2|bnb)": (
        "this format is not modelled; w4a16 is the nearest, four bits multiplied in sixteen"
    ),
    r"beam": "beam search is not modelled; every request is one sequence",
    r"^(autoscal|scale_(up|down|to))": (
        "autoscaling is not modelled; `query NAME fleet` sizes replicas hour by hour"
    ),
}
"""By what its spellings begin with or hold, in any case and with `_` between words."""


def not_modelled(word: str) -> str:
    """Return what to say of a word that is known and not modelled; nothing of any other.

    >>> not_modelled("Beam-Search")
    'beam search is not modelled; every request is one sequence'
    >>> not_modelled("tpp")
    ''
    """
    spelt = re.sub(r"[\s.-]+", "_", word.casefold())
    return next((said for form, said in SENTENCES.items() if re.search(form, spelt)), "")
