"""Counts the models that private training makes, in the ledger, and says what they hide.

A model is counted before its checkpoint is written, by its hash: the same round done again after a crash has the same
noise and counts once, and one that came out otherwise, because other clients answered, counts again. Nothing takes a
count back: neither a deletion that is abandoned nor a model that the gate rejects.
"""

import math
from dataclasses import dataclass, replace
from logging import getLogger
from pathlib import Path
from typing import Any

from server.ledger import PRIVATE_TRAINING, SAMPLE_PRIVACY, Ledger, LedgerWriter
from server.requests.training_privacy import TrainingPrivacy
from server.state_directory.files import NOISE_SECRET
from strategies.aggregation import OwnAggregation
from strategies.settings.run_config import RunSettings
from unlearning.certified.private_training import (
    PrivateMean,
    bounded,
    epsilon_of_group,
    least_noise_multiplier,
    most_rounds,
    require_accountant,
    spent_epsilon,
)
from unlearning.certified.round_lengths import PrivateRounds
from unlearning.certified.secret_noise import derived_key, noise_secret
from unlearning.errors import ConfigurationError, MethodFailed
from unlearning.runtime.json_codec import to_plain
from unlearning.task_contract import unhidden, unhidden_statistics
from unlearning.tasks.task import Task

_log = getLogger(__name__)
_RESTORED = "The ledger was restored from a backup: models made since then are not counted here."
_ASSUMED = (
    "It assumes that the server draws the noise as it says and keeps the noise secret, single updates and who took "
    "part to itself; that its test data are of no client; and that neither the number of rounds nor who leaves is "
    "chosen by a look at the models. It speaks of models: not of losses, counts and scores that clients report, which "
    "have no noise, nor of what a client kept."
)


def private_settings(
    settings: RunSettings, own: OwnAggregation | None, task: Task
) -> tuple[RunSettings, OwnAggregation | None]:
    """Return the settings of private training, and no strategy in place of FedAvg's mean.

    Flower's private FedAvg with fixed clipping is carried out by ours: its figures become settings.

    Raises:
        ConfigurationError: the strategy is another, or the model or the machine does not go with privacy.
    """
    if settings.hides_samples:
        require_accountant()
        if wrong := unhidden(task):
            raise ConfigurationError(wrong)
    if not settings.is_private:
        return settings, own
    require_accountant()
    wrong = unhidden_statistics(task)
    if task.local_layers:
        wrong.append("privacy: it covers a model that is averaged whole. Leave local_layers out.")
    found = None if own is None else own.fixed_clipping()
    if own is not None and found is None:
        wrong.append(
            f"privacy: what {own.name} adds to or takes from the noise is not known. Leave the strategy out, or give "
            "DifferentialPrivacyServerSideFixedClipping around FedAvg."
        )
    if found is not None and found[2] != settings.fraction * settings.num_clients:
        wrong.append(
            f"privacy: num_sampled_clients is {found[2]}, and fraction times num-clients is "
            f"{settings.fraction * settings.num_clients:g}, by which a sum is divided. Make them equal."
        )
    if wrong:
        raise ConfigurationError(wrong)
    if found is None:
        return settings, None
    named = {"privacy_noise_multiplier": found[0], "privacy_clip_norm": found[1]}
    return settings.with_changes(named), None


def private_mean(settings: RunSettings, state_dir: Path) -> PrivateMean | None:
    """Return what makes the models of rounds; None where training is not private.

    Raises:
        ConfigurationError: no noise is enough, or the noise secret cannot be used.
    """
    if not settings.is_private:
        return None
    noise = settings.privacy_noise_multiplier or least_noise_multiplier(
        PrivateRounds(noise_multiplier=0.0, sampling=settings.fraction, count=settings.rounds),
        epsilon=settings.privacy_epsilon,
        delta=settings.privacy_delta,
    )
    return PrivateMean(
        clip_norm=settings.privacy_clip_norm,
        noise_multiplier=noise,
        sampling=settings.fraction,
        expected_clients=settings.num_clients,
        key=derived_key(noise_secret(state_dir / NOISE_SECRET), "private-training"),
    )


def refuse_other_privacy(settings: RunSettings, ledger: Ledger, *, round_number: int) -> None:
    """Refuse to go on after `round_number` rounds without the noise that these had, or with noise that these lack.

    Raises:
        ConfigurationError: the settings ask for another kind of noise.
    """
    facts = ledger.facts()
    for kind, fact in (("client", PRIVATE_TRAINING), ("samples", SAMPLE_PRIVACY)):
        if fact in facts and settings.privacy != kind:
            wrong = (
                "privacy: this federation has trained with it, and rounds without would undo what it promises. Set "
                f'"{kind}" again, or name another state-dir.'
            )
        elif fact not in facts and settings.privacy == kind and round_number:
            wrong = (
                f"privacy: {round_number} round(s) were done without noise, and no later one can cover them. Name "
                "another state-dir, whose training begins with privacy."
            )
        else:
            continue
        raise ConfigurationError([wrong])


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingAccount:
    """The account of a federation whose training is private."""

    settings: RunSettings
    mean: PrivateMean
    ledger: Ledger

    @property
    def now(self) -> TrainingPrivacy:
        """What is counted so far; its limits are those of the settings."""
        settings, known = self.settings, TrainingPrivacy.of(self.ledger.facts())
        terms: dict[str, Any] = {
            "clip_norm": settings.privacy_clip_norm,
            "delta": settings.privacy_delta,
            "budget": settings.privacy_epsilon,
            "limit": settings.privacy_deletion_epsilon,
        }
        return TrainingPrivacy(**terms) if known is None else replace(known, **terms)

    def one_more(self, before: TrainingPrivacy) -> tuple[PrivateRounds, ...]:
        """Return the rounds with one more of the present noise."""
        *others, last = before.rounds or (self._rounds(0),)
        if replace(last, count=0) == self._rounds(0):
            return (*others, replace(last, count=last.count + 1))
        return (*others, last, self._rounds(1))

    def count(self, writer: LedgerWriter, release: str) -> None:
        """Count a model, by its hash, unless it is the one that was counted last."""
        before = self.now
        if release != before.newest:
            self._write(writer, replace(before, rounds=self.one_more(before), newest=release))

    def announce(self, writer: LedgerWriter, left: int) -> None:
        """Tell admission how many clients have left."""
        before = self.now
        if left != before.left or PRIVATE_TRAINING not in self.ledger.facts():
            self._write(writer, replace(before, left=left))

    @property
    def is_spent(self) -> bool:
        """Whether one more round would exceed a budget that ends training."""
        settings, before = self.settings, self.now
        if not settings.privacy_epsilon or settings.privacy_at_budget == "warn":
            return False
        return spent_epsilon(self.one_more(before), delta=before.delta) > settings.privacy_epsilon

    def refuse_if_spent(self) -> None:
        """Refuse a round that a method asks for.

        Raises:
            MethodFailed: the budget is spent, and ends training.
        """
        if self.is_spent:
            raise MethodFailed(
                f"One more round with noise would exceed the privacy budget: {self.now.text} Set a larger "
                "privacy-epsilon, or privacy-at-budget = warn, and start the run again.",
                retryable=False,
                code="budget-spent",
            )

    def check(self, training_rounds: int) -> None:
        """Refuse what cannot be kept before anything runs; with `warn` a budget that will be exceeded is logged.

        Raises:
            ConfigurationError: the budget does not suffice for the rounds after these.
        """
        settings, before = self.settings, self.now
        planned, budget = max(0, settings.rounds - training_rounds), settings.privacy_epsilon
        if not (planned and budget):
            return
        found = spent_epsilon([*before.rounds, self._rounds(planned)], delta=before.delta)
        if found <= budget:
            return
        enough = most_rounds(self._rounds(0), epsilon=budget, delta=before.delta, earlier=before.rounds)
        noise = least_noise_multiplier(self._rounds(settings.rounds), epsilon=budget, delta=before.delta)
        problem = (
            f"privacy-epsilon: {planned} more round(s) would use ε = {found:.4g} at δ = {before.delta:g}, and the "
            f"budget is {budget:g}; {before.num_rounds} used {before.epsilon or 0:.4g} already. It is enough "
            f"for {enough} more (rounds = {training_rounds + enough}), or in a new state-dir with "
            f"privacy-noise-multiplier = {math.ceil(1000 * noise) / 1000:g} for all {settings.rounds}."
        )
        if settings.privacy_at_budget == "stop":
            raise ConfigurationError([problem])
        _log.warning("%s", problem)

    def covered(self, left: int) -> TrainingPrivacy:
        """Return the account with `epsilon_next` for a group of `left` clients."""
        return self._with_figures(replace(self.now, left=left - 1))

    def statement(self, found: TrainingPrivacy) -> dict[str, Any]:
        """Return the account of a deletion that `found` covers, as reports and certificates have it."""
        group, unmet = found.left + 1, [_RESTORED] if found.is_restored else []
        noise = max((one.noise_multiplier for one in found.rounds), default=0.0)
        lead = "Calibrated noise, not certified" if unmet else "Certified"
        text = (
            f"{lead}: the model was trained with differential privacy for single clients and stays as it is. The "
            f"models of all {found.num_rounds:,} rounds are indistinguishable, within ε = {found.epsilon_next:.4g} "
            f"and δ = {found.delta:g}, from those of a process that never had the data of the {group} client(s) that "
            f"have left so far. {_rounds_in_words(found)} {_ASSUMED}"
        )
        return {
            "statement": " ".join((text, *unmet)),
            "basis": "empirical" if unmet else "proven",
            "sigma": noise * found.clip_norm,
            "sensitivity": found.clip_norm * group,
            "sensitivity_is_bound": True,
            "unmet": unmet,
            "epsilon_of_this_release": found.epsilon_next,
            "num_releases": found.num_rounds,
            "spent_epsilon": found.epsilon_next,
            "delta": found.delta,
            "budget_epsilon": found.budget or None,
        }

    def _rounds(self, count: int) -> PrivateRounds:
        return PrivateRounds(
            noise_multiplier=self.mean.noise_multiplier, sampling=self.mean.sampling, count=count
        )

    def _write(self, writer: LedgerWriter, account: TrainingPrivacy) -> None:
        account = self._with_figures(account)
        if account.budget and (account.epsilon or 0) > account.budget:
            _log.warning("The privacy budget is exceeded: %s", account.text)
        writer.set_facts({PRIVATE_TRAINING: to_plain(account)})
        _log.info("Privacy: %s", account.text)

    def _with_figures(self, account: TrainingPrivacy) -> TrainingPrivacy:
        epsilon = spent_epsilon(account.rounds, delta=account.delta)
        following = epsilon_of_group(
            account.rounds, delta=account.delta, group=account.left + 1, limit=account.limit
        )
        return replace(account, epsilon=bounded(epsilon), epsilon_next=bounded(following))


def _rounds_in_words(found: TrainingPrivacy) -> str:
    noise = " or ".join(f"{z:.4g}" for z in sorted({one.noise_multiplier for one in found.rounds}))
    share = " or ".join(f"{q:.4g}" for q in sorted({one.sampling for one in found.rounds}))
    return (
        f"In a round each update is shortened to a norm of {found.clip_norm:g}, their sum gets Gaussian noise of "
        f"{noise} times that, and each client takes part with probability {share}, drawn in secret; all weigh the "
        "same, and the divisor is fixed."
    )
