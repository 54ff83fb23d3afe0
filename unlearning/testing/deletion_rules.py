"""The rules about each deletion that a method says it can carry out."""

import json
from dataclasses import replace
from functools import lru_cache

import numpy as np

from unlearning.buffers import check_variances
from unlearning.errors import (
    ConfigurationError,
    FlowerUnlearningError,
    MethodFailed,
    NumericalError,
    UpdateRefused,
)
from unlearning.methods.method import Need, UnlearningState
from unlearning.requests import NOTHING, Granularity, Target
from unlearning.runtime.archive import pack, unpack
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.stores import MemoryStore
from unlearning.testing.deletions import CLASS, MAX_EXCHANGES, OTHER_SAMPLES, Deletion, Endless
from unlearning.testing.method_rules import Rule, rule
from unlearning.testing.traces import traces_of
from unlearning.testing.watched import Restarted, Short, Watched, WithMemo, are_equal

DELETION_RULES: list[Rule[Deletion]] = []


@lru_cache(maxsize=1)
def _watched(deletion: Deletion) -> tuple[Watched, UnlearningState]:
    """Carry it out once more, looking at each call; what two rules need."""
    watched = Watched(deletion.method)
    return watched, deletion.run(watched)


@rule(
    DELETION_RULES,
    "comes to an end with a model",
    f"End in a state with finished=True after at most {MAX_EXCHANGES} exchanges here, whose parameters are finite and "
    "have the shape and dtype of those it began with.",
)
def _comes_to_an_end(deletion: Deletion) -> str:
    try:
        found = deletion.last.parameters
    except Endless:
        return f"it had not finished after {MAX_EXCHANGES} exchanges"
    start = deletion.learnt.parameters
    if (found.shape, found.dtype) != (start.shape, start.dtype):
        return f"the model is {found.dtype} {found.shape}, and was {start.dtype} {start.shape}"
    return "" if np.isfinite(found).all() else "the model has numbers that are not finite"


@rule(
    DELETION_RULES,
    "moves the model if it says so, and only then",
    "A model that stays as it was has forgotten nothing; a method that leaves it says moves_model=False in MethodInfo.",
)
def _moves_the_model(deletion: Deletion) -> str:
    moved = not np.array_equal(deletion.last.parameters, deletion.learnt.parameters)
    says = deletion.method.info.moves_model
    return (
        "" if moved == says else f"moves_model is {says}, and the model {'moved' if moved else 'is the same'}"
    )


@rule(
    DELETION_RULES,
    "gives the same bits for the same seed",
    "Draw from a generator seeded by problem.seed and problem.round, at clients by instruction.training.seed, and keep "
    "nothing on the object, in a global or from the clock.",
)
def _is_deterministic(deletion: Deletion) -> str:
    return (
        ""
        if are_equal(deletion.run(), deletion.last)
        else "two runs of the same deletion ended in two states"
    )


@rule(
    DELETION_RULES,
    "survives a restart between any two exchanges",
    "Keep all that the next exchange needs in state.arrays (NumPy arrays) and state.values (finite JSON), and nothing "
    "on the object.",
)
def _survives_a_restart(deletion: Deletion) -> str:
    restarted = deletion.run(Restarted(deletion.method), between=_through_a_checkpoint)
    if are_equal(restarted, _through_a_checkpoint(deletion.last)):
        return ""
    return "a run whose state was written to a file and read back after each exchange ended in another state"


def _through_a_checkpoint(state: UnlearningState) -> UnlearningState:
    json.dumps(to_plain(state), allow_nan=False)
    return unpack(UnlearningState, pack(state))


@rule(
    DELETION_RULES,
    "counts its exchanges",
    "Return state.advance(parameters, finished=…) from aggregate(), and exchanges=0 from begin().",
)
def _counts_exchanges(deletion: Deletion) -> str:
    counts = [state.exchanges for state in deletion.recorded.states]
    return "" if counts == list(range(len(counts))) else f"the states count {counts}"


@rule(
    DELETION_RULES,
    "changes nothing that it is given",
    "Work on copies: problem, state, instruction, site and replies are still needed as they were.",
)
def _changes_nothing(deletion: Deletion) -> str:
    watched, _ = _watched(deletion)
    return watched.seen


@rule(
    DELETION_RULES,
    "asks whom the problem names, and tells each only what is its own to forget",
    "Instructions go to clients of problem.targets and problem.retained; `forget` is problem.targets[client] or left "
    "out, and for a retained client left out.",
)
def _asks_its_own(deletion: Deletion) -> str:
    problem = deletion.recorded_problem
    for instructions in deletion.recorded.instructions:
        if not instructions:
            return "it is not finished and asks no client"
        for client, one in instructions.items():
            if client not in {*problem.targets, *problem.retained}:
                return f"it asks {client}, who is neither target nor retained"
            if one.forget not in (NOTHING, problem.targets.get(client, NOTHING)):
                return f"it tells {client} to forget {one.forget}"
    return ""


@rule(
    DELETION_RULES,
    "needs no memo",
    "site.memo may be empty in each exchange: it saves work, and decides nothing.",
)
def _needs_no_memo(deletion: Deletion) -> str:
    kept = deletion.run(WithMemo(deletion.method))
    return (
        ""
        if are_equal(kept, deletion.last)
        else "with a memo that is kept it ends in another state than without"
    )


@rule(
    DELETION_RULES,
    "keeps nothing of the forgotten examples in its state, and sends nothing of them",
    "Neither ids nor inputs of examples leave their client: keep models, updates and counts. What is rewritten for "
    "later has no entry of a client that is gone.",
)
def _keeps_no_trace(deletion: Deletion) -> str:
    return traces_of(deletion)


@rule(
    DELETION_RULES,
    "goes on where a client has no example of the class",
    "With skewed labels some clients hold none: count nothing for them, and let the others' examples go.",
)
def _bears_a_client_without_the_class(deletion: Deletion) -> str:
    if deletion.target.class_label is None:
        return ""
    own = deletion.sites["a"]
    sites = {**deletion.sites, "a": own.select(own.targets.numpy() != CLASS)}
    finite = np.isfinite(deletion.run(sites=sites).parameters).all()
    return "" if finite else "the model has numbers that are not finite"


@rule(
    DELETION_RULES,
    "forgets what is named, and not something else",
    "Other samples to forget give another model where the client that holds them is asked: use site.forget.",
)
def _forgets_what_is_named(deletion: Deletion) -> str:
    named = any(one.named_samples for one in deletion.learnt.prepared.values())  # they were learnt as one
    if Need.REQUESTER_ONLINE not in deletion.method.info.needs or not deletion.target.sample_ids or named:
        return ""
    other = deletion.run(problem=deletion.problem(Target(Granularity.SAMPLE, "a", OTHER_SAMPLES)))
    same = np.array_equal(other.parameters, deletion.last.parameters)
    return "two disjoint sets of samples gave the same model" if same else ""


@rule(
    DELETION_RULES,
    "takes no buffer for a direction",
    "A running variance that is negated is below zero. Say in MethodInfo that replies are updates, which are zero for "
    "buffers then, and see to these by with_kept_buffers(); or refuse such a model by Need.NO_STATISTICS, or in the "
    "preparation's problems().",
)
def _keeps_statistics_sound(deletion: Deletion) -> str:
    if Need.NO_STATISTICS in deletion.method.info.needs:
        return ""
    try:
        spread = Deletion(deletion.method, deletion.target.granularity, normalised=True)
        found = spread.last.parameters
        check_variances(spread.recorded_problem.task, found)
    except UpdateRefused as exc:
        return str(exc).rstrip(".")
    except (ConfigurationError, NumericalError):
        return ""  # it refuses a model with running statistics
    return "" if np.isfinite(found).all() else "the model has numbers that are not finite"


@rule(
    DELETION_RULES,
    "fails in a sentence where no client answers",
    "Raise MethodFailed(…, retryable=True) from aggregate() where the replies do not suffice.",
)
def _fails_without_answers(deletion: Deletion) -> str:
    problem = deletion.problem()
    state = deletion.method.begin(problem, deletion.learnt.parameters)
    if state.finished:
        return ""
    try:
        deletion.method.aggregate(problem, state, {})
    except MethodFailed as exc:
        return "" if str(exc).strip() else "its MethodFailed says nothing"
    return "aggregate() went on without a single answer"


@rule(
    DELETION_RULES,
    "refuses vectors of another length",
    "Nobody else checks them where MethodInfo has replies_have_any_length: raise UpdateRefused or MethodFailed.",
)
def _refuses_other_lengths(deletion: Deletion) -> str:
    if not deletion.method.info.replies_have_any_length:
        return ""
    short = Short(deletion.method)
    try:
        deletion.run(short)
    except (UpdateRefused, MethodFailed):
        return ""
    return "it took an answer whose vector had lost its end" if short.has_cut else ""


@rule(
    DELETION_RULES,
    "says so where it was not prepared for",
    "Read what the server kept by self.kept(problem), which raises MethodFailed; at a client raise it where site.store "
    "has no entry.",
)
def _says_it_was_not_prepared(deletion: Deletion) -> str:
    if deletion.method.info.preparation is None:
        return ""
    stores = {client: MemoryStore() for client in deletion.sites}
    try:
        deletion.run(problem=replace(deletion.problem(), kept=None), stores=stores)
    except FlowerUnlearningError:
        return ""
    return "it ran to its end though nothing was kept in training"
