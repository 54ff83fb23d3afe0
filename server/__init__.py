"""The federation's server side: the live loop, the ledger, the deletion service, the command line.

Import from here: `server.ledger` (the durable record of requests), `server.requests.admission` (the only admission
for new requests), `server.api` (the deletion service and its client), `server.cli` (the command).

This package may import `strategies` and `unlearning`, never `client`; import-linter enforces that.
"""
