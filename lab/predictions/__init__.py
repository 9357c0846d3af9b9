"""A benchmark of prediction: any tool's figures, scored on rows that were measured in public.

`entries/` has one file per tool whose predictions are in the reference folder.
The page docs/explanation/predictions.md describes the layout of a user's own file.
"""
