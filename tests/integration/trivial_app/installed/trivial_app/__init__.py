"""The trivial app's code: what an administrator would have installed."""
