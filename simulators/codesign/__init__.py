"""Co-design: sizes of an accelerator together with the deployment in which it serves."""
