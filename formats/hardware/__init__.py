"""Files of accelerators and of the networks that run on them."""
