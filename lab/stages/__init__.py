"""Steps of stages that were timed or traced, or that stand on several kinds of GPUs."""
