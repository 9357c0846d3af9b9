"""The logistics: design spaces, samplers, engines, results. It knows nothing of GPUs."""
