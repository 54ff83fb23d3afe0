"""The app's code: what an administrator would have installed."""
