"""Networks: building blocks, their products, and shipped descriptions as TOML files."""
