"""Unlearning methods: one paper, one file (or files that begin with its name), client half and server half together.

The seam is `method.py`, with `preparation.py`; `registry.py` has a line a method. Import from those files.
"""
