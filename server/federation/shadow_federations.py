"""Shadow federations next to the live one, for LiRA: the setting `shadow-federations` says how many.

Each is trained as the federation is, round by round, with another seed and on a random half of every client's
examples. Their rounds lie between those of the federation: one after each, two while they have to catch up.
They touch neither its model and checkpoints nor the ledger's rounds.

Examples that will be compared with forgotten ones have to be in half of the shadow models too. These are the
server's test examples, on which it trains as more clients would, or without such the held-out examples of the
clients.

Before a deletion those who hold forgotten examples are sent the shadow models once and say, of a sample, what
models with and without each example look like. From then on the server needs the shadow models no more: it
judges the confidences that any measurement brings. So they are erased as soon as the unlearned model is committed,
and begin again without what was forgotten.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from logging import getLogger

import numpy as np

from server.federation.clients import Clients
from server.federation.observing import ServerTestSet
from server.federation.shadow_store import ShadowState, ShadowStore
from server.federation.state import FederationState, Step
from strategies.client_measurements import measuring
from strategies.exchange import Exchange
from strategies.settings.run_config import RunSettings
from strategies.shadow_rounds import (
    FIT_SHADOWS,
    HELD_OUT,
    average_shadows,
    collect_fits,
    shadow_record,
    train_messages,
)
from unlearning.parameters import Vector
from unlearning.requests import Exclusions, Forget
from unlearning.tasks.task import Task, forgotten_mask
from unlearning.training import initial_parameters
from unlearning.verification.shadow_models import ShadowFits, fit_models, shadow_seed, train_models

_log = getLogger(__name__)

MOST_TURNS = 2
"""The most shadow rounds after a round of the federation: they catch up without delaying it much."""

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


@dataclass(frozen=True, slots=True, kw_only=True)
class ShadowFederations:
    """The shadow federations of a run, on disk between their rounds; none where the settings want none."""

    settings: RunSettings
    task: Task
    clients: Clients
    test_set: ServerTestSet
    store: ShadowStore
    turns: Counter[int] = field(default_factory=Counter, init=False)  # by training rounds of the federation

    def resume(self, state: FederationState) -> None:
        """Erase, at a start, shadow models that are of other settings, or trained on what was forgotten since.

        From then on those that are stored belong to this run: a deletion that is committed erases them.
        """
        if self.store.rounds() and not self._belongs(self.store.load(), state):
            self.store.erase()

    def is_due(self, training_rounds: int, turns: int) -> bool:
        """Tell whether they are behind the `training_rounds` and it is their turn, after `turns` since the last one.

        A run that has done its rounds does the last one with them, and does not stay to catch up after a deletion.
        """
        settings = self.settings
        if not settings.shadow_federations or turns >= MOST_TURNS:
            return False
        behind = training_rounds - self.store.rounds()
        is_over = 0 < settings.rounds <= training_rounds
        return behind == 1 or (behind > 1 and not is_over)

    def between_rounds(self, state: FederationState) -> Step | None:
        """Carry out one round of all shadow federations where it is due; else None."""
        if not self.is_due(state.training_rounds, self.turns[state.training_rounds]):
            return None
        self.turns[state.training_rounds] += 1
        unchanged = Step(state=state)
        before = self.store.load() or self._fresh(state.exclusions)
        number = before.rounds + 1
        messages = train_messages(
            self.clients.fedavg,
            self.clients.grid,
            number,
            before.models,
            uses_held_out=self.test_set.examples is None,
        )
        if not messages:
            _log.warning("No client can train the shadow federations now.")
            return unchanged
        done = self.clients.exchange(messages)
        following = self._average(before, done)
        if following is None:
            return unchanged
        _log.info(
            "Round %d of %d of the %d shadow federations: %d byte(s), %.1f s",
            number,
            state.training_rounds,
            len(following.models),
            done.bytes_sent + done.bytes_received,
            done.seconds,
        )
        return replace(unchanged, cleanup=(partial(self.store.save, following),))

    def _average(self, before: ShadowState, done: Exchange) -> ShadowState | None:
        """Return the shadow federations after a round; None where no client's answer can enter."""
        number = before.rounds + 1
        own = self._train_here(before.models, number)
        models, participants, refused = average_shadows(before.models, done.replies, own, self.clients.fedavg)
        self.clients.refused |= refused
        if not participants:
            return None
        return replace(
            before,
            models=tuple(models),
            rounds=number,
            took_part={
                client: before.took_part.get(client, 0) + (client in participants)
                for client in sorted({*before.took_part, *participants})
            },
            cost=before.cost.plus(done, self.clients.peak_memory(done)),
        )

    def ask(self, number: int, training_rounds: int, forgets: Mapping[str, Forget]) -> ShadowFindings:
        """Return what the shadow models say of the forgotten examples, by client in `forgets`, and of test examples.

        Nothing where the settings want none; never an error, for a deletion does not wait for an attack.
        number: of the federation's round, after `training_rounds` ordinary ones.
        """
        if not self.settings.shadow_federations:
            return ShadowFindings()
        shadows = self.store.load()
        rounds = 0 if shadows is None else shadows.rounds
        if shadows is None or rounds < training_rounds - 1:
            return ShadowFindings(
                notes={
                    "": f"the shadow federations have had {rounds} of {training_rounds} rounds; they begin again "
                    "after each deletion"
                }
            )
        uses_held_out = self.test_set.examples is None
        fedavg, online = self.clients.fedavg, self.clients.online()
        notes = self._who_cannot_say(shadows, forgets, online)
        asked = set(forgets) - set(notes)
        if uses_held_out:
            asked |= set(self.clients.sample(number, without=forgets)) & set(online)
        done = self.clients.exchange(
            fedavg.plan.messages(
                FIT_SHADOWS,
                number,
                {client: online[client] for client in sorted(asked)},
                measuring(fedavg.settings.attack_samples, forgets, {HELD_OUT: uses_held_out}),
                shadow_record(shadows.models),
            )
        )
        notes |= {client: str(failure) for client, failure in done.failures.items()}
        fits: dict[str, ShadowFits] = {} if uses_held_out else {"test": self._fit_here(shadows.models)}
        sets = {"forgotten": set(forgets)} | ({"test": asked} if uses_held_out else {})
        for name, clients in sets.items():
            found, refused = collect_fits(done.replies, name, clients)
            fits |= {name: found} if found is not None else {}
            self.clients.refused |= refused
            notes |= {client: f"its answer is refused: {why}" for client, why in refused.items()}
        return ShadowFindings(fits=fits, notes=notes, training=shadows, exchange=done)

    def _who_cannot_say(
        self, shadows: ShadowState, clients: Iterable[str], online: Container[str]
    ) -> dict[str, str]:
        """Return which clients need not be asked, and why: the shadow models hardly know their examples."""
        found = {client: "it is not online" for client in clients if client not in online}
        usual = self.settings.fraction * shadows.rounds
        for client in clients:
            times = shadows.took_part.get(client, 0)
            if client in online and times < usual / 2:
                found[client] = (
                    f"it took part in {times} of {shadows.rounds} rounds of the shadow federations"
                )
        return found

    def erase(self) -> None:
        """Erase all shadow models: a deletion reaches them too."""
        if self.store.erase():
            _log.info("The shadow models are erased: they were trained on what was forgotten.")

    def _belongs(self, found: ShadowState | None, state: FederationState) -> bool:
        """Tell whether `found` belongs to these settings and knows nothing that was forgotten since."""
        settings = self.settings
        if found is None or len(found.models) != settings.shadow_federations or found.seed != settings.seed:
            return False
        is_of_this_model = found.models[0].shape == state.parameters.shape
        return (
            is_of_this_model
            and found.rounds <= state.training_rounds
            and found.exclusions == state.exclusions
        )

    def _fresh(self, exclusions: Exclusions) -> ShadowState:
        seed = self.settings.seed
        models = tuple(
            initial_parameters(self.task, shadow_seed(seed, number))
            for number in range(self.settings.shadow_federations)
        )
        return ShadowState(models=models, seed=seed, exclusions=exclusions)

    def _train_here(self, models: tuple[Vector, ...], number: int) -> list[dict[int, tuple[int, Vector]]]:
        """Return what the server trains on its half of the test examples for each shadow model.

        Forgotten classes stay out. It stands for as many clients as its test examples would make of the usual size:
        what is known of an example by heart depends on how many share a client with it, and test examples shall be
        known as clients' ones are.
        """
        if self.test_set.examples is None:
            return []
        plan = self.clients.fedavg.plan
        forgotten = plan.left_out(SERVER)
        examples = self.test_set.examples.select(~forgotten_mask(self.test_set.examples, forgotten))
        sizes = list(plan.num_examples.values())
        count = max(1, round(len(examples) * len(sizes) / sum(sizes))) if sum(sizes) else 1
        return [
            train_models(
                self.task,
                models,
                examples.select(np.arange(part, len(examples), count)),
                self.settings.training(number),
                seed=self.settings.seed,
                holder=f"{SERVER} {part}",
                number=number,
            )
            for part in range(count)
        ]

    def _fit_here(self, models: tuple[Vector, ...]) -> ShadowFits:
        """Return what the shadow models say of the test examples that `ServerTestSet.observe` samples."""
        assert self.test_set.examples is not None, "only a server that has test examples is asked"
        return fit_models(
            self.task,
            models,
            self.test_set.examples,
            seed=self.settings.seed,
            max_samples=self.settings.attack_samples,
            generator=np.random.default_rng(self.settings.seed),
        )
