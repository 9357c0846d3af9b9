"""Prefix caching: prompts that begin alike share the KV blocks of their beginning.

`lru` replays requests against a cache of such blocks. The engine's loop does not ask it yet.
"""
