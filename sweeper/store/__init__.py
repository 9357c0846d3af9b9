"""Results on disk: parts that workers write, and which points they answer.

`keys` identifies points across spaces and names parts; `parquet` writes, reads and verifies one
part. `store` lists finished and missing points and copies rows of other spaces; `upkeep` compacts
and merges folders.
"""
