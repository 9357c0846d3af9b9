"""An accelerator's own sizes beside the deployment it serves in: hardware and software at once."""
