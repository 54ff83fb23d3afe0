"""Flower's programs on this machine: their layout on disk, their start and stop. Knows no ledger."""
