"""What an unlearning method computes, and what is learnt and forgotten.

Import from here: `unlearning.methods` (the seam and its registry), `unlearning.tasks`
(model, loss, metrics, data), `unlearning.training`, `unlearning.verification`,
`unlearning.requests`, `unlearning.errors`.

This package knows PyTorch and its numerical neighbours. It may not import flwr, grpc, ray, a
database, or anything of `strategies`, `client` and `server`; import-linter enforces that.
"""

from flower_unlearning_names import refuse_shadows

refuse_shadows()
