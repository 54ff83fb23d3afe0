"""The deletion service: its protocol (deletion.proto), its server half and its client half.

Import from here: `server.api.client` (DeletionClient), `server.api.server` (serve),
`server.api.limits` (Limits). `deletion_pb2*` are generated: `make proto`.

This package may import `server.ledger`, `server.requests.admission` and `unlearning`; the client half imports
neither the ledger nor PyTorch, so that the command line starts fast.
"""
