"""The deletion service: its table of calls, gRPC and HTTP before one service, and the client.

Import from here: `server.service.calls` (the table), `server.service.client` (DeletionClient),
`server.service.grpc_server` (serve), `server.service.http_server` (serve_http). `deletion_pb2` is generated
(`make proto`).

This package may import `server.ledger`, `server.requests` and `unlearning`; the client imports no PyTorch, so that the
command line starts fast.
"""
