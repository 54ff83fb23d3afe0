"""How many requests filed at sites travel with an answer; apart from the messages, which import PyTorch."""

SITE_REQUESTS = 20
"""So many requests filed at a site travel with one answer at most; the others with the next ones."""
SITE_REQUEST_BYTES = 14 * 2**20
"""So much JSON they take at most; what is around them fits into the rest of `untrusted.MAX_JSON_BYTES`."""
