"""Prefix caching: prompts that begin alike share the KV blocks of their beginning.

`lru` replays requests against a cache of such blocks alone, one after another. The engine's account
of its KV blocks, which running requests hold too, is `engine/prefix_cache.py`.
"""
