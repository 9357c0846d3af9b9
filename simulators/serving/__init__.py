"""A stream of requests through the replicas of an LLM engine."""
