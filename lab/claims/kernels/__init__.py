"""Claims about kernels that `validate kernels` prints: a file each, with a function `checks`.

`judged.py` is what they share: predictions beside measured rows.
"""
