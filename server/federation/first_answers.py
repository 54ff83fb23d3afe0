"""Whether a federation learns at all: a run into which no client's answer has ever come ends as failed."""

import time
from dataclasses import dataclass, field

from server.federation.state import FederationState, RoundResult
from strategies.settings.run_config import RunSettings
from unlearning.errors import AppError, TrainingFailed
from unlearning.requests import Exclusions


@dataclass(slots=True)
class FirstAnswers:
    """Watches the training rounds of a run until an answer has entered one.

    every_round_counts: whether one round in which all clients failed ends the run.
    A live run waits for clients that come later: it ends where all that are expected (`start-clients`, else
    `num-clients`) have failed in every round for `wait-timeout-s`.
    """

    settings: RunSettings
    every_round_counts: bool = False
    _reason: str = field(default="no client took part", init=False)
    _failing: bool = field(default=False, init=False)
    _failing_since: float | None = field(default=None, init=False)

    def after_round(self, done: RoundResult) -> None:
        """Take note of a round.

        Raises:
            TrainingFailed: it counts, and all clients failed; or all that are expected have failed for too long.
            AppError: it is the first, and the user's own strategy makes no model; later that may be a client's fault.
        """
        if done.state.round == 1 and done.outcome.model is None and done.outcome.problem:
            raise AppError(done.outcome.problem)
        failed = _reasons(done)
        if done.outcome.participants or not failed:
            self._reason = done.outcome.problem or self._reason
            self._failing, self._failing_since = False, None
            return
        self._failing = True
        first = min(failed)
        others = f" ({len(failed) - 1} more failed)" if len(failed) > 1 else ""
        self._reason = f"of client {first}: {failed[first].rstrip('.')}{others}"
        if self.every_round_counts:
            raise TrainingFailed(f"No client's answer entered round {done.state.round}; {self._reason}.")
        expected = self.settings.start_clients or self.settings.num_clients
        if len(failed) < expected or not _never_learnt(done.state):
            self._failing_since = None
            return
        now = time.monotonic()
        self._failing_since = now if self._failing_since is None else self._failing_since
        if not self.settings.rounds and now - self._failing_since >= self.settings.wait_timeout_s:
            raise TrainingFailed(
                f"All {len(failed)} client(s) have failed in every round for wait-timeout-s, and none has ever "
                f"trained; {self._reason}."
            )

    def at_end(self, state: FederationState) -> None:
        """Refuse to call a run done that has learnt nothing.

        Raises:
            TrainingFailed: no answer has ever entered a round.
        """
        if _never_learnt(state) or (
            self._failing and not state.num_examples
        ):  # what was deleted taught it nothing
            raise TrainingFailed(
                f"No client's answer entered any of {state.training_rounds} training round(s); {self._reason}."
            )


def _never_learnt(state: FederationState) -> bool:
    return not state.num_examples and state.exclusions == Exclusions()


def _reasons(done: RoundResult) -> dict[str, str]:
    """Return why clients' answers did not enter a round."""
    failed = {name: str(one) for name, one in done.exchange.failures.items()}
    return {**failed, **done.exchange.refused, **done.outcome.refused}
