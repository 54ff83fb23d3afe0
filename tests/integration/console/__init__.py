"""The console against a real deletion service."""
