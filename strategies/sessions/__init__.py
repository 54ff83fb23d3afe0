"""Sessions: the inner exchanges of an unlearning over one gRPC stream a client, opened by one Flower message.

A Flower message costs seconds, because each one starts a Python process at the client; a method of many
short exchanges (`MethodInfo.is_iterative`) pays that once with a session. How one is set up:
docs/how-to-use-sessions.md.

Import from here: `strategies.sessions.session_grid` (SessionGrid), `strategies.sessions.client_session`
(run_client_session), `strategies.sessions.endpoint` (where to listen, whom to trust). `session_pb2*` are generated:
`make proto`.

May import grpc, Flower, `strategies` and `unlearning`; not `server`, `client` or a database.
"""
