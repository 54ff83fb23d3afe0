"""Deletions without a server beside the paper's tables; see docs/bench.md."""
