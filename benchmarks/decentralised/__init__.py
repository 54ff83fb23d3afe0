"""Deletions without a server beside the paper's tables; see docs/how-to-reproduce-the-papers.md."""
