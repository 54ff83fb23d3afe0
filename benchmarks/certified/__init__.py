"""Certified unlearning beside its paper's figures; see docs/how-to-reproduce-the-papers.md."""
