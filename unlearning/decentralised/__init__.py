"""Learning and unlearning without a server: the mathematics, with no word about messages or processes.

Import from the modules: `graphs` and `mixing` (who talks to whom, by what weights), `dpsgd` (a round), `corrections`
(the deletion of samples, a class or a client), `calibration` (its noise). The baseline PDUDT is in
`benchmarks.decentralised`.

`client/peer` runs it between processes; `docs/explanation-decentralised.md` says what is promised. May import
`unlearning.certified`, `unlearning.curvature`, `unlearning.solvers`, `unlearning.tasks`, `unlearning.training`
and what these may; not `unlearning.methods`, whose exchanges need a server.
"""
