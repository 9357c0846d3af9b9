"""What one layer of a model asks of a GPU in a training step, and what that takes."""
