"""A federation without a server: each peer talks to its neighbours only.

`node.Peer` is the state machine of one peer (`known_items` and `models` are what it has, `links` what others lack),
`work` what deletion requests need of it, `items` and `journal` what it says and keeps; none of these knows a network.
`in_process` connects peers within one process, `grpc_transport` between machines, `process` runs one peer (the command
`flower-unlearn-peer`, `cli`).

May import `client.memory`, `strategies.sessions`, `unlearning` and gRPC; not `server`. There is no SuperLink here.
"""
