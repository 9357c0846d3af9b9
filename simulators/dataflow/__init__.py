"""One layer on one spatial accelerator: every access counted, and the best mapping found."""
