"""A small network on pictures of digits."""
