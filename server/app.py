"""The ServerApp: wires settings, ledger, checkpoints and strategy to the live loop.

Flower runs `server.app:app`, in simulation and on a deployment alike, or an app of your own:

    app = make_server_app(make_task, load_test)
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from logging import getLogger
from pathlib import Path
from shutil import disk_usage
from socket import gethostname
from typing import Any

import numpy as np
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import Tensor

from unlearning.runtime.gc_tuning import end_without_collecting, nothing_collected
from unlearning.runtime.spool import make_spool

with nothing_collected():  # PyTorch, SciPy and scikit-learn come with it
    from server.live_loop import LiveLoop

from flower_unlearning_names import refuse_shadows
from server.certificate.keys import check_certificate_key
from server.federation.checkpoints import AskedRound, CheckpointStore
from server.federation.clients import Clients
from server.federation.context import FederationContext
from server.federation.earlier_settings import SettingsSince, going_on
from server.federation.observing import ServerTestSet
from server.federation.preparations import Preparations
from server.federation.round_log import RoundLog
from server.federation.sample_accounts import start_sample_accounts
from server.federation.scripted_requests import parse_requests
from server.federation.state import FederationState
from server.federation.training_account import (
    TrainingAccount,
    private_mean,
    private_settings,
    refuse_other_privacy,
)
from server.ledger import FEDERATION, Ledger, LedgerUnavailable
from server.operations.logs import log_to_flower
from server.state_directory.files import (
    ARRIVING,
    ASKED_ROUND,
    CHECKPOINTS,
    KEPT,
    NOISE_SECRET,
    SETTINGS_FILE,
    erase_unfinished,
    private_state,
    refuse_half_restored,
)
from server.state_directory.ledger_address import ledger_of_run
from server.state_directory.subject_key import subject_keys
from strategies import built_in
from strategies.aggregation import MakeStrategy, OwnAggregation, check_make_strategy
from strategies.fedavg import FedAvg
from strategies.roster import Roster
from strategies.round_plan import RoundPlan
from strategies.sessions.endpoint import Endpoint
from strategies.sessions.framing import MAX_INSTRUCTION_BYTES
from strategies.sessions.session_grid import SessionGrid
from strategies.settings.run_config import RunSettings
from strategies.settings.task_source import LoadTest, MakeTask, TaskSource
from unlearning.certified.secret_noise import noise_secret
from unlearning.errors import AppError, ConfigurationError, Fenced, SessionError, TrainingFailed
from unlearning.methods.costs import training_flops
from unlearning.methods.eligibility import FederationProfile
from unlearning.methods.method import Need
from unlearning.methods.registry import method_named
from unlearning.parameters import Vector, content_hash, size_of_vector
from unlearning.runtime.durable_files import keep_private, write_atomically
from unlearning.runtime.outages import is_disk_outage, run_through_outages
from unlearning.runtime.peak_memory import GB
from unlearning.task_contract import check_task, couples_examples, refuse_coupled
from unlearning.tasks.own_code import load_own_test
from unlearning.tasks.task import Examples, Task
from unlearning.training import starting_parameters, structure

_log = getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class AppRun:
    """What a run is of: its settings, what is learnt, and the server's test examples, if it has any.

    written: the settings by the names that a person types, and who makes the task, for the state directory.
    aggregation: a strategy of the user's own, in place of FedAvg's mean.
    """

    settings: RunSettings
    task: Task
    test: Examples | None
    written: Mapping[str, Any]
    aggregation: OwnAggregation | None = None

    @classmethod
    def of(
        cls,
        values: Mapping[str, Any],
        source: TaskSource,
        load_test: LoadTest,
        make_strategy: MakeStrategy | None = None,
    ) -> "AppRun":
        """Return the run that `values` (Flower's `context.run_config`) describe, of this app.

        Raises:
            ConfigurationError: lists every setting that is wrong.
            AppError: a function of the app raised, or returned something else than it must.
        """
        settings = source.read(values)
        task, test = source.task(settings), load_own_test(load_test, settings.own)
        prepared = map(method_named, settings.run.preparations())
        if test is not None and task.local_layers:
            why = f"the server would test the local_layers of {task.name} untrained: only sites have values of them"
            raise AppError(
                f"{why}. Let load_test return None; sites test with their own.", code="local-layers"
            )
        if test is not None and source.table != built_in.NO_TABLE:
            check_task(task, test)
            refuse_coupled(task, test, settings.run.preparing(Need.MEAN_LOSS))
            for one in settings.run.preparations().values():
                one.check_examples(task, test)
        if settings.run.secure_aggregation and make_strategy is not None:
            raise ConfigurationError(["secure-aggregation: a strategy of your own does not go with it."])
        own = make_strategy and OwnAggregation(make_strategy, settings.own, task, prepared)
        run_settings, aggregation = private_settings(settings.run, own, task)
        return cls(
            settings=run_settings,
            task=task,
            aggregation=aggregation,
            test=test,
            written=source.to_keep(settings),
        )


def make_server_app(
    make_task: MakeTask,
    load_test: LoadTest | None = None,
    *,
    table: str | None = None,
    strategy: MakeStrategy | None = None,
) -> ServerApp:
    """Return the ServerApp of a federation that can forget, with a task of your own.

    make_task: `make_task(settings) -> Task`, the same on server and clients.
    load_test: `load_test(settings) -> Examples | None`, what the server itself measures on, if it has anything.
    table: of the settings, in `[tool.flwr.app.config]`; the name of make_task's package, if not given.
    strategy: `make_strategy(settings) -> Strategy`, Flower's or your own, which aggregates rounds in place of FedAvg.

    Raises:
        ConfigurationError: a module of yours has the name of a package of ours; `strategy` is no function.
    """
    refuse_shadows()
    check_make_strategy(strategy)
    source = TaskSource.of(make_task, table)
    made = ServerApp()

    @made.main()
    def main(grid: Grid, context: Context) -> None:
        """Run the federation of `context.run_config` until it is done or stopped."""
        keep_private()
        end_without_collecting()
        log_to_flower()
        try:
            run = AppRun.of(context.run_config, source, load_test or (lambda _: None), strategy)
            run_federation(grid, run, run_id=context.run_id)
        except (ConfigurationError, AppError, SessionError, TrainingFailed) as exc:
            _log.error("%s", exc)
            raise

    return made


app = make_server_app(built_in.make_task, built_in.load_test, table=built_in.NO_TABLE)


def run_federation(
    grid: Grid, run: AppRun, *, run_id: int, every_round_counts: bool = False
) -> FederationState:
    """Go on from the newest checkpoint, or start from fresh weights; returns the last state.

    every_round_counts: whether a training round in which every client fails ends the run; a live federation goes on.

    Raises:
        TrainingFailed: every client failed in a training round, and every round counts; or none has ever trained.
        ConfigurationError: the scripted requests are malformed, the certificate key cannot sign, the checkpoint is of
            another model, a new model has no room, or a setting was changed on which what is kept for methods depends.
        SessionError: the address for sessions is none of this machine's.
        Fenced: a newer server process has taken over.
    """
    settings = run.settings
    scripted = parse_requests(settings.requests, settings.rounds)
    check_certificate_key(settings.certificate_key)
    with open_federation(grid, run, run_id=run_id) as context:
        start_sample_accounts(settings, context.ledger, context.writer)

        def begin() -> FederationState:
            found = context.checkpoints.newest()
            if found is None:
                _log.info("A new federation in %s", context.state_dir)
                found = FederationState(parameters=starting_parameters(context.task, settings.seed))
            else:
                _log.info("Going on in %s from round %d (%s)", context.state_dir, found.round, found.phase)
            return replace(found, settings=_settings_of_rounds(run, found))

        write_atomically(context.state_dir / SETTINGS_FILE, json.dumps(dict(run.written), indent=1).encode())
        loop = LiveLoop(context, scripted, every_round_counts=every_round_counts)
        try:
            state = run_through_outages(loop.run, begin, is_outage=_is_outage)
        except Fenced as exc:
            _log.error("This server process ends: %s", exc)
            raise
        digest = content_hash(state.parameters)
        _log.info("Done after round %d; model %s in %s", state.round, digest, context.state_dir)
        return state


def _is_outage(error: BaseException) -> bool:
    return isinstance(error, LedgerUnavailable) or is_disk_outage(error)


def _settings_of_rounds(run: AppRun, state: FederationState) -> tuple[SettingsSince, ...]:
    now = SettingsSince.of(run.settings, run.written, state.round + 1)
    return going_on(state.settings, now, state.prepared_since)


def _check_start(
    run: AppRun,
    task: Task,
    ledger: Ledger,
    checkpoints: CheckpointStore,
    account: TrainingAccount | None,
    state_dir: Path,
) -> None:
    """Refuse a run that cannot go on from the newest checkpoint, or has no room for its first.

    Raises:
        ConfigurationError: it is of another federation or model; the model has no room; a setting was changed on which
            what is kept for methods depends; rounds had noise and these would not, or the other way round; the privacy
            budget does not suffice.
    """
    settings = run.settings
    _check_same_name(settings.federation, ledger, state_dir)
    state = checkpoints.newest()
    if state is None:
        _check_room(settings, state_dir, size_of_vector(structure(task)) * task.dtype.itemsize)
    else:
        _check_same_model(task, state.parameters, state_dir)
        _settings_of_rounds(run, state)
    refuse_other_privacy(settings, ledger, round_number=state.round if state else 0)
    if account is not None:
        account.check(state.training_rounds if state else 0)


def _check_same_model(task: Task, parameters: Vector, state_dir: Path) -> None:
    size, dtype = size_of_vector(structure(task)), str(task.dtype).removeprefix("torch.")
    if (parameters.size, str(parameters.dtype)) != (size, dtype):
        raise ConfigurationError(
            [
                f"state-dir: {state_dir} holds a model of {parameters.size:,} parameters in {parameters.dtype}, and "
                f"the settings make one of {size:,} in {dtype}. Leave the task's settings and prepare, or name another "
                "state-dir."
            ]
        )


def _check_same_name(name: str, ledger: Ledger, state_dir: Path) -> None:
    known = (ledger.facts().get(FEDERATION) or {}).get("name", name)
    if known != name:
        raise ConfigurationError(
            [
                f"state-dir: {state_dir} is the federation {known!r}, as its certificates say, and this run is of "
                f"{name!r}. Give each federation a state-dir of its own, or leave its name."
            ]
        )


def _check_room(settings: RunSettings, state_dir: Path, size: int) -> None:
    """Refuse a model of `size` bytes that cannot travel or be kept, before the first round.

    Raises:
        ConfigurationError: says what is too small for it.
    """
    wrong = []
    if settings.transport == "session" and size > MAX_INSTRUCTION_BYTES:
        wrong.append(
            f"transport: the model has {size / GB:.1f} GB, and {MAX_INSTRUCTION_BYTES / GB:.1f} GB at most go over a "
            'session. Set transport = "messages", or freeze a part of the model, which then stays at home.'
        )
    answers = settings.num_clients if settings.transport == "session" else 0
    needed, free = (settings.checkpoints_kept + 1 + answers) * size, disk_usage(state_dir).free
    if needed > free:
        wrong.append(
            f"state-dir: {settings.checkpoints_kept} checkpoints and a round's answers take {needed / GB:.2g} GB in "
            f"{state_dir}, where {free / GB:.2g} GB are free. Make room, name another state-dir, or keep fewer "
            "(checkpoints-kept)."
        )
    if wrong:
        raise ConfigurationError(wrong)


@contextmanager
def open_federation(grid: Grid, run: AppRun, *, run_id: int) -> Iterator[FederationContext]:
    """Open a federation's parts, with the fencing token that makes this process the only writer."""
    settings, state_dir = run.settings, _prepare_directory(run, run_id)
    keys = subject_keys(state_dir)
    endpoint = Endpoint.from_settings(settings)
    ledger = Ledger.open(ledger_of_run(settings.ledger, state_dir), keys)
    sessions = None
    if endpoint is not None:
        spool = make_spool(state_dir / ARRIVING)
        sessions = SessionGrid(
            grid,
            endpoint,
            always=settings.transport == "session",
            spool=spool,
            wire_dtype=settings.rounded_to,
        )
    try:
        preparations = Preparations(directory=state_dir / KEPT, prepared=settings.preparations())
        plan = RoundPlan(subject_keys=keys, rules=preparations)
        roster, mean = Roster(timeout_s=settings.round_timeout_s), private_mean(settings, state_dir)
        fedavg = FedAvg(run.task, settings, roster, plan, run.aggregation, mean)
        task = fedavg.task
        checkpoints = CheckpointStore(state_dir / CHECKPOINTS, keep=settings.checkpoints_kept)
        account = None
        if mean is not None:
            account = TrainingAccount(settings=settings, mean=mean, ledger=ledger)
        # Before the fence, which ends the run that works.
        if endpoint is not None:
            endpoint.check()
        _check_start(run, task, ledger, checkpoints, account, state_dir)
        token = ledger.acquire_fence(f"{gethostname()}:{os.getpid()} run {run_id}", now=_now())
        writer = ledger.live(token, _now)
        erase_unfinished(state_dir)
        asked = AskedRound(state_dir / ASKED_ROUND)
        clients = Clients(grid=sessions or grid, fedavg=fedavg, ledger=ledger, writer=writer, asked=asked)
        test_set = ServerTestSet(task, run.test, settings)
        yield FederationContext(
            settings=settings,
            task=task,
            federation=_profile(run, task),
            state_dir=state_dir,
            ledger=ledger,
            writer=writer,
            clients=clients,
            test_set=test_set,
            checkpoints=checkpoints,
            preparations=preparations,
            records=RoundLog(clients=clients, test_set=test_set, evaluate_every=settings.evaluate_every),
            training_account=account,
        )
    finally:
        if sessions is not None:
            sessions.close()
        ledger.close()


def _prepare_directory(run: AppRun, run_id: int) -> Path:
    """Return the state directory, private and with the run's noise secret in it."""
    state_dir = state_directory(run.settings, run_id)
    refuse_half_restored(state_dir)
    private_state(state_dir)
    noise_secret(
        state_dir / NOISE_SECRET
    )  # made before there is anything to copy, so every copy has the same one
    return state_dir


def state_directory(settings: RunSettings, run_id: int) -> Path:
    """Return where the federation's files are; without `state-dir` a fresh directory for this run only."""
    if settings.state_dir:
        return Path(settings.state_dir).expanduser().absolute()
    home = Path(os.environ.get("FLWR_HOME") or Path.home() / ".flwr")
    return home / "flower-unlearning" / f"run-{run_id}"


def _profile(run: AppRun, task: Task) -> FederationProfile:
    """Return what the federation is; operations are counted on the server's test examples, and 0 without any."""
    settings, examples, own = run.settings, run.test, run.aggregation
    few = examples.select(np.arange(min(2, len(examples)))) if examples else None
    return settings.profile(
        task,
        aggregation="" if own is None or own.is_fedavg else own.name,
        adds_noise=own is not None and own.adds_noise,
        flops_per_example=training_flops(task, few) if few else 0.0,
        input_dimensions=_dimensions(few) if few else 0,
        couples_examples=examples is not None and couples_examples(task, examples),
    )


def _dimensions(examples: Examples) -> int:
    """Return the dimensions of one input; 0 where it is several tensors."""
    inputs, _ = examples.batch(slice(None))
    return inputs.ndim - 1 if isinstance(inputs, Tensor) else 0


def _now() -> datetime:
    return datetime.now(UTC)
