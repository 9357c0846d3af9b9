"""Results on disk: parts that workers write, and which points they answer.

`keys` identifies points across spaces; `parquet` writes and reads one part, `part_names` parses its
name, `checksums` verifies it. `store` lists finished and missing points, `reuse` copies rows of
other spaces, `upkeep` compacts and merges folders.
"""
