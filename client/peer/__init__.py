"""A federation without a server: each peer exchanges models with its neighbours only.

Read in this order: `gossip` (what peers send), `peer` (the state machine of one peer, with what it knows in
`known_items` and `record`, its models in `peer_models`, what neighbours lack in `outbox`), `owed_items` and `learner`
(what deletion requests need of it), `journal`. None of these knows a network: `grpc_transport` connects peers
between machines, and `process` runs one peer (the command `flower-unlearn-peer`, `peer_cli`).

May import `client.memory`, `strategies`, `unlearning` and gRPC; not `server`. There is no SuperLink here.
"""
