"""What helps while one types: a JSON Schema of space files for editors, completion for shells."""
