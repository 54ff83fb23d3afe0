"""The deletion service over HTTP, in the words of OpenDSR 2.0: a second transport of `server.api`, no second service.

Import from here: `server.http_api.listening` (serve_http), `server.http_api.tokens`, `server.http_api.callbacks`.

This package may import `server.api`, `server.certificate`, `server.ledger` and `unlearning`; nothing but
the command line imports it.
"""
