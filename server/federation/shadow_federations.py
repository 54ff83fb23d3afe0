"""Shadow federations beside the live one, for LiRA: the setting `shadow-federations` says how many.

Each is trained as the federation is, round by round, with another seed and on a random half of every client's
examples. Their rounds lie between those of the federation: one after each, two while they have to catch up.
They touch neither its model and checkpoints nor the ledger's rounds.

Examples that will be compared with forgotten ones have to be in half of the shadow models too. These are the
server's test examples, on which it trains as more clients would, or without such the held-out examples of the
clients.

Before a deletion those who hold forgotten examples are sent the shadow models once and say, of a sample, what
models with and without each example look like. From then on the server needs the shadow models no more: it
judges the confidences that any measurement brings. So they are erased as soon as the unlearned model is committed,
and begin anew without what was forgotten.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from logging import getLogger

import numpy as np

from server.federation.driver import Driver
from server.federation.shadow_store import ShadowState, ShadowStore
from server.federation.state import FederationState
from strategies.exchange import Exchange
from strategies.shadows import averaged, fit_messages, joined, train_messages
from unlearning.parameters import Vector
from unlearning.requests import Forget
from unlearning.tasks.task import forgotten_mask
from unlearning.training import initial_parameters
from unlearning.verification.shadow_membership import shadow_seed
from unlearning.verification.shadow_models import ShadowFits, fit_models, train_models

_log = getLogger(__name__)

MOST_TURNS = 2
"""So many shadow rounds follow a round of the federation at most: they catch up, and hold it up a little only."""

SERVER = "the server's test examples"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFindings:
    """What the shadow models say of the examples of a deletion.

    fits: by `test` and `forgotten`; None where there are no shadow models to ask.
    notes: what is missing and why, by client; under an empty name what concerns all.
    training: the shadow federations that were asked, for what they cost.
    exchange: the one in which clients were asked.
    """

    fits: Mapping[str, ShadowFits] | None = None
    notes: Mapping[str, str] = field(default_factory=dict)
    training: ShadowState | None = None
    exchange: Exchange = field(default_factory=Exchange)


def begun(driver: Driver, state: FederationState) -> None:
    """At a start: erase shadow models that are of other settings, or trained on what was forgotten since."""
    store = ShadowStore(driver.state_dir)
    if store.rounds() and _current(driver, state) is None:
        store.erase()


def is_due(driver: Driver, state: FederationState) -> bool:
    """Whether the shadow federations are behind and it is their turn.

    A run that has done its rounds does the last one with them, and does not stay to catch up after a deletion.
    """
    settings = driver.settings
    if not settings.shadow_federations or driver.shadow_turns >= MOST_TURNS:
        return False
    behind = state.training_rounds - ShadowStore(driver.state_dir).rounds()
    is_over = 0 < settings.rounds <= state.training_rounds
    return behind == 1 or (behind > 1 and not is_over)


def train_round(driver: Driver, state: FederationState) -> None:
    """One round of all shadow federations, durable when this returns.

    Raises:
        Fenced: a newer server process has taken over.
    """
    driver.shadow_turns += 1
    before = _current(driver, state) or _fresh(driver, state)
    number = before.rounds + 1
    messages = train_messages(
        driver.fedavg, driver.grid, number, before.models, uses_held_out=driver.test_set is None
    )
    if not messages:
        _log.warning("No client can train the shadow federations now.")
        return
    done = driver.exchange(messages)
    own = _trained_here(driver, before.models, number)
    models, participants, refused = averaged(before.models, done.replies, own, driver.fedavg)
    driver.refused |= refused
    if not participants:
        return
    following = replace(
        before,
        models=tuple(models),
        rounds=number,
        took_part={
            client: before.took_part.get(client, 0) + (client in participants)
            for client in sorted({*before.took_part, *participants})
        },
        cost=before.cost.plus(done, driver.peak_memory(done)),
    )
    driver.ledger.check_fence(driver.token)
    ShadowStore(driver.state_dir).save(following)
    _log.info(
        "Round %d of %d of the %d shadow federations: %d client(s), %d byte(s), %.1f s",
        number,
        state.training_rounds,
        len(models),
        len(participants),
        done.bytes_sent + done.bytes_received,
        done.seconds,
    )


def ask(driver: Driver, state: FederationState, forgets: Mapping[str, Forget]) -> ShadowFindings:
    """What the shadow models say of the forgotten examples, by client in `forgets`, and of test examples.

    Nothing where the settings want none; never an error, for a deletion does not wait for an attack.
    """
    if not driver.settings.shadow_federations:
        return ShadowFindings()
    shadows = _current(driver, state)
    rounds = 0 if shadows is None else shadows.rounds
    if shadows is None or rounds < state.training_rounds - 1:
        return ShadowFindings(
            notes={
                "": f"the shadow federations have had {rounds} of {state.training_rounds} rounds; they begin anew "
                "after each deletion"
            }
        )
    uses_held_out = driver.test_set is None
    online = driver.fedavg.roster.online(driver.grid)
    notes = {client: "it is not online" for client in forgets if client not in online}
    usual = driver.settings.fraction * rounds
    for client in set(forgets) & set(online):
        if shadows.took_part.get(client, 0) < usual / 2:
            notes[client] = (
                f"it took part in {shadows.took_part.get(client, 0)} of {rounds} rounds of the shadow federations"
            )
    asked = set(forgets) - set(notes)
    if uses_held_out:
        others = (client for client in driver.fedavg.eligible(driver.grid) if client not in forgets)
        asked |= set(driver.fedavg.sample(others, state.round)) & set(online)
    done = driver.exchange(
        fit_messages(
            driver.fedavg,
            state.round,
            shadows.models,
            {client: online[client] for client in sorted(asked)},
            forgets,
            uses_held_out=uses_held_out,
        )
    )
    notes |= {client: str(failure) for client, failure in done.failures.items()}
    fits: dict[str, ShadowFits] = {} if uses_held_out else {"test": _fitted_here(driver, shadows.models)}
    for name, clients in {"forgotten": set(forgets), **({"test": asked} if uses_held_out else {})}.items():
        found, refused = joined(done.replies, name, clients)
        fits |= {name: found} if found is not None else {}
        driver.refused |= refused
        notes |= {client: f"its answer is refused: {why}" for client, why in refused.items()}
    return ShadowFindings(fits=fits, notes=notes, training=shadows, exchange=done)


def erase(driver: Driver) -> None:
    """Erase all shadow models: a deletion reaches them too."""
    if ShadowStore(driver.state_dir).erase():
        _log.info("The shadow models are erased: they were trained on what was forgotten.")


def _current(driver: Driver, state: FederationState) -> ShadowState | None:
    """The shadow federations, if they belong to these settings and know nothing that was forgotten since."""
    found = ShadowStore(driver.state_dir).load()
    settings = driver.settings
    if found is None or len(found.models) != settings.shadow_federations or found.seed != settings.seed:
        return None
    belongs = found.models[0].shape == state.parameters.shape and found.rounds <= state.training_rounds
    return found if belongs and found.exclusions == state.exclusions else None


def _fresh(driver: Driver, state: FederationState) -> ShadowState:
    seed = driver.settings.seed
    models = tuple(
        initial_parameters(driver.task, shadow_seed(seed, number))
        for number in range(driver.settings.shadow_federations)
    )
    return ShadowState(models=models, seed=seed, exclusions=state.exclusions)


def _trained_here(
    driver: Driver, models: tuple[Vector, ...], number: int
) -> list[dict[int, tuple[int, Vector]]]:
    """What the server trains on its half of the test examples for each shadow model, without forgotten classes.

    It stands for as many clients as its test examples would make of the usual size: what is known of an example
    by heart depends on how many share a client with it, and test examples shall be known as clients' ones are.
    """
    if driver.test_set is None:
        return []
    forgotten = driver.fedavg.exclusions.of(SERVER) | driver.fedavg.withheld.of(SERVER)
    examples = driver.test_set.select(~forgotten_mask(driver.test_set, forgotten))
    sizes = list(driver.fedavg.num_examples.values())
    count = max(1, round(len(examples) * len(sizes) / sum(sizes))) if sum(sizes) else 1
    return [
        train_models(
            driver.task,
            models,
            examples.select(np.arange(part, len(examples), count)),
            driver.settings.training(number),
            seed=driver.settings.seed,
            holder=f"{SERVER} {part}",
            number=number,
        )
        for part in range(count)
    ]


def _fitted_here(driver: Driver, models: tuple[Vector, ...]) -> ShadowFits:
    """What the shadow models say of the test examples that `Driver.observe_test` samples."""
    assert driver.test_set is not None, "only a server that has test examples is asked"
    return fit_models(
        driver.task,
        models,
        driver.test_set,
        seed=driver.settings.seed,
        max_samples=driver.settings.attack_samples,
        generator=np.random.default_rng(driver.settings.seed),
    )
