"""Deletion requests before they run: admission, plans, the privacy budget. Knows the ledger only."""
