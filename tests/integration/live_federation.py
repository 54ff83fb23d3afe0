"""A live federation of real processes, as the tests of deletions and of kills see it."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.deployment import LocalDeployment, supernode
from server.federation.checkpoints import CheckpointStore
from server.ledger import Event, Ledger, RoundRecord
from server.operations.flower_control import ConfigValue, flower_environment
from server.operations.starting import write_app
from server.service.client import DeletionClient
from strategies.installation import program
from strategies.settings.run_config import RunSettings
from strategies.tls_files import TlsFiles
from tests.federation import InProcessFederation
from tests.integration.deployments import FrugalDeployment
from tests.programs import run_well
from tests.supervised import SeldomAsked, supervised
from tests.waiting import HANGS_S
from unlearning.requests import DeletionRequest, Granularity, Status, Target
from unlearning.tasks import load_site
from unlearning.tasks.task import Examples

SETTINGS: Mapping[str, ConfigValue] = {
    "dataset": "digits",
    "model": "logistic",
    "partition": "dirichlet",
    "alpha": 1.0,
    "learning-rate": 0.5,
    "rounds": 0,
    # A score that nothing reaches, so that every deletion takes exactly one recovery round.
    "recovery-target": 1.0,
    "recovery-max-rounds": 1,
    "max-score-loss": 0.0,  # with so little recovery
    "attack-samples": 20,
    "wait-timeout-s": 120.0,
    "round-timeout-s": 150.0,
}
"""Little work a round; rounds go on until the run is stopped."""

OVER_SESSIONS: Mapping[str, ConfigValue] = {"transport": "session", "round-interval-s": 1.0}
"""Of a deployment with sessions: where messages are not what is tested, a round takes as long as its arithmetic.

A round that no test waits for begins a second after the one before, and leaves the processors to the others.
"""

OVER_MESSAGES: Mapping[str, ConfigValue] = {"round-interval-s": 3.0}
"""A round takes some seconds; one that no test waits for leaves the processors to the others for as long."""

TRAIN, UNLEARN, WHOAMI = "train", "train.unlearn", "query.whoami"
"""Types of messages, as a SuperNode's log names them."""


class LiveFederation:
    """The real app in its own processes, its deletion service, and a supervisor of its run.

    `service` files requests, `ledger` has their state, `deployment` kills and restarts.
    Rounds go over sessions; without, over Flower messages, where `num_messages` and `wait_for_message` see them.
    """

    def __init__(
        self,
        directory: Path,
        *,
        num_clients: int,
        with_sessions: bool = True,
        node_config: Mapping[str, ConfigValue] | None = None,
        environment: Mapping[str, str] | None = None,
        **settings: ConfigValue,
    ) -> None:
        given = {name.replace("_", "-"): value for name, value in settings.items()}
        self.run_config = {**SETTINGS, "num-clients": num_clients, **given}
        self._directory = directory
        self.deployment = FrugalDeployment(
            directory / "federation",
            num_clients=num_clients,
            app_dir=write_app(directory / "app"),
            run_config={**(OVER_SESSIONS if with_sessions else OVER_MESSAGES), **self.run_config},
            with_deletion_service=True,
            with_sessions=with_sessions,
            node_config=node_config,
            environment=environment,
        )
        self.run_id = 0
        self.filed: dict[str, Target] = {}
        self.ledger = Ledger.open(self._created(self.deployment.layout.ledger_url))
        self.service = DeletionClient(self.deployment.layout.deletion_address, timeout_s=HANGS_S)

    # --- what people do

    def command(self, name: str, *arguments: str) -> str:
        """Run one of the project's commands to its end and give what it said.

        Raises:
            AssertionError: it did not end well.
        """
        return run_well([program(name), *arguments], self._directory, flower_environment())

    def flower_unlearn(self, *arguments: str) -> str:
        """Run `flower-unlearn` against the deletion service."""
        return self.command("flower-unlearn", "--server", self.deployment.layout.deletion_address, *arguments)

    def file(self, target: Target, key: str = "") -> DeletionRequest:
        """File a request at the deletion service; it is durable when this returns."""
        return self.noted(self.service.submit(target, method="puf-special", idempotency_key=key), target)

    def noted(self, request: DeletionRequest, target: Target) -> DeletionRequest:
        """Remember what was asked: the ledger gives the ids of samples back when a deletion is completed."""
        self.filed[request.id] = target
        return request

    def samples(self, client: int, first: int, count: int = 5) -> Target:
        """The target "`count` samples of this client", from the `first` one on."""
        ids = sorted(self._examples(client).ids.tolist())
        return Target(Granularity.SAMPLE, str(client), frozenset(ids[first : first + count]))

    def num_examples(self, client: int) -> int:
        """How many training examples this client was given."""
        return len(self._examples(client))

    # --- what is waited for

    def wait_until_reached(self, request: DeletionRequest, status: Status) -> None:
        """Wait until the request has come to `status` (and perhaps gone on)."""
        self.deployment.wait_until(
            lambda: any(event.to_status is status for event in self.ledger.events.page(request.id)),
            HANGS_S,
            f"request {request.id} is {status}",
        )

    def wait_for_message(self, client: int, kind: str) -> None:
        """Wait until this client has begun to work on one more message of type `kind`."""
        before = self.num_messages(client, kind)
        self.deployment.wait_until(
            lambda: self.num_messages(client, kind) > before,
            HANGS_S,
            f"client {client} gets a {kind} message",
        )

    def wait_for_rounds(self, count: int) -> None:
        """Wait for `count` more training rounds."""
        wanted = len(self.training_rounds()) + count
        self.deployment.wait_until(
            lambda: len(self.training_rounds()) >= wanted, HANGS_S, f"{count} more rounds are done"
        )

    # --- what can be seen

    def num_messages(self, client: int, kind: str) -> int:
        """How many messages of type `kind` this client's SuperNode has taken in, over all its starts."""
        return num_received(self.deployment.group(supernode(client)).log_text(), kind)

    def rounds(self) -> list[RoundRecord]:
        """The rounds by number; of a round that was done again the last record counts."""
        last = {record.round: record for record in self.ledger.rounds()}
        return [last[number] for number in sorted(last)]

    def training_rounds(self) -> list[RoundRecord]:
        """The rounds outside of deletions."""
        return [record for record in self.rounds() if record.kind == "training"]

    def rounds_of(self, request: DeletionRequest, kind: str) -> list[RoundRecord]:
        """The rounds of this kind that served the request."""
        return [
            record for record in self.rounds() if record.kind == kind and request.id in record.request_ids
        ]

    def completions(self, request: DeletionRequest) -> list[Event]:
        """The events by which the request was completed."""
        return [event for event in self.ledger.events.page(request.id) if event.to_status is Status.COMPLETED]

    def num_exchanges(self) -> int:
        """How many exchanges the method has behind it, by the newest checkpoint."""
        state = CheckpointStore(self.deployment.layout.state_dir / "checkpoints").newest()
        deletion = state.deletion if state is not None else None
        return deletion.method_state.exchanges if deletion and deletion.method_state else 0

    def session_process(self, client: int) -> int:
        """The process that a client's session lives in."""
        members = self.deployment.group(supernode(client)).members()
        (found,) = (member.pid for member in members if "flwr-clientapp" in member.command)
        return found

    # --- the same without kills

    def replayed(self) -> list[DeletionRequest]:
        """The same deletions, together where they were served together, after the same rounds of the same clients.

        Undisturbed and in this process. All requests must be completed; they come back in their order.

        Raises:
            AssertionError: training was not the same, by its participants and losses.
        """
        batches: dict[int, list[DeletionRequest]] = {}
        for request in self.ledger.requests.select():
            (unlearning,) = self.rounds_of(request, "unlearning")
            batches.setdefault(unlearning.round, []).append(request)
        directory = self._directory / f"undisturbed-{len(self.ledger.requests.select())}"
        settings = {**self.run_config, "wait-timeout-s": 0.2}  # for those who were away
        with closing(InProcessFederation(directory, settings)) as undisturbed:
            done: list[RoundRecord] = []
            for number in sorted(batches):
                for record in [one for one in self.training_rounds()[len(done) :] if one.round < number]:
                    done.append(record)
                    present = set(map(undisturbed.node, record.metrics["participants"]))
                    undisturbed.grid.offline = set(undisturbed.grid.contexts) - present
                    undisturbed.run(rounds=len(done))
                undisturbed.grid.offline = set()
                for request in batches[number]:
                    undisturbed.file(self.filed[request.id])
                undisturbed.run(rounds=len(done))  # no more training: the deletion alone
            trained = list(map(_training_of, done))
            assert trained == list(map(_training_of, undisturbed.ledger.newest_rounds("training", len(done))))
            return undisturbed.ledger.requests.select()

    # --- inside

    def _examples(self, client: int) -> Examples:
        exact = {**self.run_config, "wire-dtype": "exact"}  # of no session here
        return load_site(RunSettings.from_run_config(exact).task(), client).train

    @staticmethod
    def _created(url: str) -> str:
        Path(url.removeprefix("sqlite:///")).parent.mkdir(parents=True, exist_ok=True)
        return url


def forget(
    deployment: LocalDeployment,
    target: Target,
    method: str,
    *,
    after_rounds: int,
    tls: TlsFiles | None = None,
) -> dict[str, Any]:
    """Submit the run of any app and after `after_rounds` rounds a request; return the report when it is completed."""
    deployment.submit_run()
    layout = deployment.layout
    with (
        closing(Ledger.open(layout.ledger_url)) as ledger,
        DeletionClient(layout.deletion_address, tls, timeout_s=HANGS_S) as service,
    ):
        deployment.wait_until(
            lambda: len(list(ledger.all_rounds())) >= after_rounds, HANGS_S, f"{after_rounds} rounds are done"
        )
        request = service.submit(target, method=method, idempotency_key="")
        deployment.wait_until(
            lambda: not ledger.requests.get(request.id).is_open, HANGS_S, "the deletion has ended"
        )
        assert ledger.requests.get(request.id).status is Status.COMPLETED
        report: dict[str, Any] = json.loads(service.report(request.id).json)
        return report


def _training_of(record: RoundRecord) -> tuple[object, ...]:
    """What tells a training round from another with the same models before it."""
    return record.metrics["participants"], record.metrics["loss"]


def hashes(request: DeletionRequest) -> dict[str, str]:
    """The models of a completed deletion: before, after the unlearning round, and after recovery."""
    return {name: value for name, value in request.result.items() if name.startswith("model_hash")}


def num_received(log: str, kind: str) -> int:
    """How many messages of type `kind` a SuperNode's log says have come in whole, one after the other.

    Between the two lines about a message comes what the message's process, which has begun by then, writes into the
    same log: 64 lines where the link to the SuperLink was slow.
    """
    steps = re.findall(r"Receiving: (\S+) message|Received successfully", log)
    return sum(step == kind and following == "" for step, following in pairwise(steps))


@contextmanager
def live_federation(directory: Path, *, num_clients: int, **settings: Any) -> Iterator[LiveFederation]:
    """A federation that has done its first training round; leaving ends everything.

    settings: of `LiveFederation`, and of the run beside those that all tests share.
    """
    with running(LiveFederation(directory, num_clients=num_clients, **settings)) as federation:
        yield federation


@contextmanager
def running(federation: LiveFederation) -> Iterator[LiveFederation]:
    """The same for one that was made before."""
    with federation.deployment as deployment, federation.service:
        run = SeldomAsked(deployment)
        federation.run_id = run.submit()
        try:
            with supervised(run, poll_s=5.0):
                federation.wait_for_rounds(1)
                yield federation
        finally:
            federation.ledger.close()
