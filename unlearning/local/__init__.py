"""Learning and whole deletions in one process, for those who use the methods as a library: no server, no messages.

    sites = {"a": Examples(...), "b": Examples(...)}
    learnt = learn(task, sites, begin(task, TrainingSettings(learning_rate=0.5)), rounds=5)
    targets = [Target(Granularity.CLIENT, "b")]
    forgotten = unlearn("puf-special", task, learnt, sites, targets, unlearning_rate=2.0)
    recovered = learn(task, retained(sites, targets), forgotten.learnt, rounds=2)

State goes in and new state comes out, as everywhere. A client that is left out of `sites` answers nothing, as one that
is offline. Seeds are those of a federation, and so are the bits of a model. `problem_of` and `carry_out` are the layer
below, for those who need to say more of a deletion than `unlearn` does. `compare` lets several methods forget the same.
"""

from unlearning.local.comparison import Compared, Comparison, compare
from unlearning.local.deletion import Unlearned, answer, carry_out, exchange, problem_of, unlearn
from unlearning.local.learning import Learnt, Sites, begin, learn, retained

__all__ = [
    "Compared",
    "Comparison",
    "Learnt",
    "Sites",
    "Unlearned",
    "answer",
    "begin",
    "carry_out",
    "compare",
    "exchange",
    "learn",
    "problem_of",
    "retained",
    "unlearn",
]
