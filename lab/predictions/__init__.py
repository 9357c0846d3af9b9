"""Scores of tools: predictions compared with rows that were measured in public.

`entries/` has one file per tool whose predictions are in the reference folder.
The page docs/explanation/predictions.md describes the layout of a user's own file.
"""
