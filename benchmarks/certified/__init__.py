"""Certified unlearning beside its paper's figures; see docs/bench.md."""
