"""What an unlearning method computes, and what is learnt and forgotten.

Import from here: `unlearning.methods` (the seam and its registry), `unlearning.tasks`
(model, loss, metrics, data), `unlearning.training`, `unlearning.verification`,
`unlearning.requests`, `unlearning.errors`.

This package knows PyTorch and its numerical neighbours. It may not import flwr, grpc, ray, a
database, or anything of `strategies`, `client` and `server`; import-linter enforces that.
"""

import os

from flower_unlearning_names import refuse_shadows

refuse_shadows()
# PyTorch looks at its first tensor; Linux gives huge pages only where they are asked for. Without them a model of 11
# million parameters costs a page fault per 4 kB of gradients and moments in every step.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")
