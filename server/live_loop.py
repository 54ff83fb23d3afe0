"""The live loop: rounds go on, and between two of them deletion requests are taken and carried out.

One step takes the federation's state and gives the next one, durably; so killing the process between or
inside steps costs at most the work of one step.
"""

from collections.abc import Sequence
from dataclasses import replace
from logging import getLogger

from server.deletion import steps as deletion
from server.federation import shadow_federations as shadows
from server.federation.driver import Driver
from server.federation.scripted_requests import ScriptedRequest
from server.federation.state import FederationState, Phase
from server.requests.admission import admit
from unlearning.errors import RequestError
from unlearning.peak_memory import MemoryWatch
from unlearning.requests import Status

_log = getLogger(__name__)


class LiveLoop:
    """Runs a federation from `state` until the configured number of rounds is done, or for ever."""

    def __init__(self, driver: Driver, scripted: Sequence[ScriptedRequest] = ()) -> None:
        self._driver = driver
        self._scripted = scripted
        self._refused: set[str] = set()

    def run(self, state: FederationState) -> FederationState:
        """Go on from `state` until there is no more to do.

        Raises:
            Fenced: a newer server process has taken over; nothing that this one did since counts.
        """
        driver = self._driver
        driver.fedavg.exclusions = state.exclusions
        driver.fedavg.await_clients(driver.grid)
        driver.register_clients()
        shadows.begun(driver, state)
        state = driver.save(deletion.reconcile(driver, driver.preparations.begun(state)))
        while True:
            following = self.step(state)
            if following is None:
                return state
            state = following

    def step(self, state: FederationState) -> FederationState | None:
        """The state after one step, or None when all is done."""
        with MemoryWatch() as self._driver.memory:
            return self._following(state)

    def _following(self, state: FederationState) -> FederationState | None:
        driver = self._driver
        driver.register_clients()
        driver.restrict(state)
        match state.phase:
            case Phase.UNLEARNING:
                return deletion.unlearn(driver, state)
            case Phase.RECOVERING:
                return deletion.recover(driver, state)
            case Phase.VERIFYING:
                return deletion.verify(driver, state)
            case Phase.TRAINING:
                return self._between_rounds(state)

    def _between_rounds(self, state: FederationState) -> FederationState | None:
        driver = self._driver
        self._file_scripted(state)
        deletion.schedule(driver)
        batch = None if state.is_resting else deletion.claim(driver, state)
        if batch is not None:
            return deletion.begin(driver, state, batch)
        if shadows.is_due(driver, state):
            shadows.train_round(driver, state)
            return state
        if driver.settings.rounds and state.training_rounds >= driver.settings.rounds:
            waiting = driver.ledger.list_requests(statuses=(Status.RECEIVED, Status.SCHEDULED))
            for request in waiting:
                _log.warning(
                    "Request %s (%s) still waits; it will be served when the federation runs again.",
                    request.id,
                    request.target.describe(),
                )
            return None
        driver.restrict(state)
        return self.train(state)

    def train(self, state: FederationState) -> FederationState:
        """One ordinary round; one without any usable update leaves the model and counts all the same."""
        driver = self._driver
        state, done = driver.fedavg_round(state)
        state = replace(state, training_rounds=state.training_rounds + 1, is_resting=False)
        driver.shadow_turns = 0
        # Recorded first: a round that is done again is recorded again, so a crash leaves none unrecorded.
        driver.record(state, "training", done)
        return driver.save(state)

    def _file_scripted(self, state: FederationState) -> None:
        driver = self._driver
        for scripted in self._scripted:
            if scripted.at > state.training_rounds or driver.ledger.find(scripted.key) is not None:
                continue
            if scripted.key in self._refused:
                continue
            try:
                request = admit(
                    driver.ledger,
                    scripted.target,
                    method=scripted.method,
                    parameters=scripted.parameters,
                    submitted_by="run configuration",
                    idempotency_key=scripted.key,
                    now=driver.now(),
                    by_operator=True,
                )
                _log.info("Request %s filed: forget %s", request.id, scripted.target.describe())
            except RequestError as exc:
                self._refused.add(scripted.key)
                _log.error("The request of the run configuration, %s, is refused: %s", scripted.key, exc)
