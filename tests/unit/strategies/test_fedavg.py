"""FedAvg among eligible clients: who is asked, what is refused, what comes out."""

import numpy as np
import pytest
from flwr.app import ArrayRecord, ConfigRecord, Message

from strategies.exchange import exchange
from strategies.fedavg import FedAvg
from strategies.in_process_grid import InProcessGrid
from strategies.messages import arrays_content, model_record, reply_content
from strategies.roster import Roster
from strategies.round_plan import RoundOutcome, RoundPlan, RoundRules
from strategies.run_config import RunSettings
from unlearning.errors import UpdateRefused
from unlearning.methods.method import Reply
from unlearning.parameters import weighted_mean
from unlearning.requests import Exclusions, Granularity, Target
from unlearning.tasks import TaskSettings, make_task

START = np.array([1.0, 2.0, 3.0])


class Answers:
    """A ClientApp whose answers the test decides: client id -> (number of examples, vector)."""

    def __init__(self, answers):
        self.answers = answers

    def __call__(self, message: Message, context) -> Message:
        client = str(context.node_config["client-id"])
        if message.metadata.message_type == "query.whoami":
            return Message(arrays_content({}, {"client-id": client}), reply_to=message)
        answer = self.answers[client]
        if isinstance(answer, Exception):
            raise answer
        count, vector = answer
        return Message(reply_content(Reply(vector=vector, num_examples=count), {}), reply_to=message)


def one_round(answers, *, exclusions=None, rules=None, **settings):
    """Run one round of FedAvg and give (new model or None, what came of it, strategy)."""
    grid = InProcessGrid(Answers(answers), [{"client-id": name} for name in answers], {})
    given = {"num-clients": len(answers), "wait-timeout-s": 0.1, **settings}
    plan = RoundPlan(exclusions=exclusions or Exclusions(), rules=rules or RoundRules())
    strategy = FedAvg(make_task(TaskSettings()), RunSettings.from_run_config(given), Roster(), plan)
    messages = strategy.configure_train(1, model_record(START), ConfigRecord(), grid)
    outcome = strategy.aggregate(1, grid.send_and_receive(messages))
    return outcome.model, outcome, strategy


def test_the_weighted_mean_is_the_hand_computed_one():
    """(1·[1,2,3] + 3·[5,6,7]) / 4 = [4,5,6]."""
    models = {"a": (1, START), "b": (3, START + 4)}
    np.testing.assert_array_equal(weighted_mean(models), [4.0, 5.0, 6.0])


def test_a_round_averages_by_examples():
    """Through real messages."""
    model, outcome, _ = one_round({"a": (1, START), "b": (3, START + 4)})
    np.testing.assert_array_equal(model, [4.0, 5.0, 6.0])
    assert outcome.participants == {"a": 1, "b": 3}


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ((2, np.array([1.0, np.nan, 3.0])), "not finite"),
        ((2, np.array([1.0, np.inf, 3.0])), "not finite"),
        ((2, np.array([1.0, 2.0])), "has 3 parameters"),
        ((2, np.ones((3, 1))), "has 3 parameters"),
        ((2, np.array([1.0, 2.0, 3.0], dtype=np.float32)), "float64"),
        ((0, START), "no example"),
    ],
    ids=["nan", "inf", "short", "shape", "dtype", "no-examples"],
)
def test_a_bad_update_is_refused_and_the_round_goes_on(bad, words):
    """The client is named, its update dropped, the others count."""
    model, outcome, _ = one_round({"good": (1, START + 1), "bad": bad})
    np.testing.assert_array_equal(model, START + 1)
    assert words in outcome.refused["bad"]


def test_a_client_that_raises_costs_its_update_and_not_the_round():
    """An error reply is no update."""
    model, outcome, _ = one_round({"good": (1, START + 1), "bad": RuntimeError("disk full")})
    np.testing.assert_array_equal(model, START + 1)
    assert list(outcome.participants) == ["good"]


def test_no_usable_update_gives_no_model():
    """The caller keeps the model it has."""
    model, _, _ = one_round({"bad": RuntimeError("disk full")})
    assert model is None


def test_an_update_over_the_norm_bound_is_refused():
    """The bound is on the change, not on the model."""
    model, outcome, _ = one_round(
        {"good": (1, START + 0.1), "bad": (1, START + 10)}, **{"max-update-norm": 1.0}
    )
    np.testing.assert_allclose(model, START + 0.1)
    assert "17.3" in outcome.refused["bad"]


def test_a_forgotten_client_is_not_asked():
    """Exclusions decide eligibility."""
    gone = Exclusions().including([Target(Granularity.CLIENT, "b")])
    model, outcome, _ = one_round({"a": (1, START), "b": (3, START + 4)}, exclusions=gone)
    np.testing.assert_array_equal(model, START)
    assert list(outcome.participants) == ["a"]


def test_a_forgotten_client_is_no_more_counted():
    """Whatever sums the counts of examples (weights, steps, shares) sums those that are left."""
    _, _, strategy = one_round({"a": (1, START), "b": (3, START)})
    assert strategy.plan.num_examples == {"a": 1, "b": 3}
    strategy.follow(strategy.plan.including([Target(Granularity.CLIENT, "b")]))
    assert strategy.plan.num_examples == {"a": 1}


def test_an_answer_to_another_round_is_refused():
    """A late or replayed update does not enter."""
    grid = InProcessGrid(Answers({"a": (1, START)}), [{"client-id": "a"}], {})
    strategy = FedAvg(
        make_task(TaskSettings()), RunSettings.from_run_config({"num-clients": 1, "wait-timeout-s": 0.1})
    )
    old = list(grid.send_and_receive(strategy.configure_train(1, model_record(START), ConfigRecord(), grid)))
    outcome = strategy.aggregate(2, old)
    assert outcome.model is None
    assert "round 1" in outcome.refused["a"]


def test_the_sample_is_seeded_sorted_and_of_the_right_size():
    """ceil(fraction · eligible), the same for the same seed and round, not always the same clients."""
    strategy = FedAvg(make_task(TaskSettings()), RunSettings.from_run_config({"fraction": 0.3}))
    clients = [str(number) for number in range(10)]
    samples = [strategy.sample(clients, number) for number in range(20)]
    assert all(len(sample) == 3 and sample == sorted(sample) for sample in samples)
    assert samples[0] == strategy.sample(reversed(clients), 0)
    assert len({tuple(sample) for sample in samples}) > 5


def test_an_exchange_ends_at_its_deadline_and_names_who_was_silent():
    """A client that never answers costs the timeout, not the run."""
    grid = InProcessGrid(
        Answers({"a": (1, START), "b": (1, START)}), [{"client-id": "a"}, {"client-id": "b"}], {}
    )
    strategy = FedAvg(make_task(TaskSettings()), RunSettings.from_run_config({"num-clients": 2}))
    messages = strategy.train_messages(1, model_record(START), grid)
    original = grid.pull_messages
    grid.pull_messages = lambda ids: [  # type: ignore[method-assign]
        reply for reply in original(ids) if reply.metadata.src_node_id != 1002
    ]
    done = exchange(grid, messages, timeout_s=0.3)
    assert list(done.messages) == ["a"]
    assert "no answer within 0.3 s" in str(done.failures["b"])
    assert done.bytes_received > 0


def test_a_registered_name_goes_before_a_declared_one():
    """A node without a key cannot take a registered client's place."""
    grid = InProcessGrid(
        Answers({"hospital-0": (1, START)}), [{"client-id": "hospital-0"}, {"client-id": "hospital-0"}], {}
    )
    grid.names = {1001: "hospital-0"}
    online = Roster().online(grid)
    assert {client: member.node_id for client, member in online.items()} == {"hospital-0": 1001}
    assert online["hospital-0"].is_registered


def test_the_record_of_the_model_has_one_array():
    """Every array is an object of its own on the wire."""
    record = model_record(START)
    assert isinstance(record, ArrayRecord)
    assert len(record) == 1


class Largest(RoundRules):
    """The model of the client with most examples; client `c` has no turn."""

    keeps_models = True

    def combine(self, before, models):
        return max(models.values(), key=lambda pair: pair[0])[1]

    def takes_part(self, client_id, number):
        return client_id != "c"


def test_a_round_goes_by_its_rules_and_the_outcome_holds_what_they_ask_for():
    """Who is asked, what may enter, what is made of it, and which models are kept."""
    answers = {"a": (1, START), "b": (3, START + 4), "c": (5, START + 9)}
    model, outcome, _ = one_round(answers, rules=Largest())
    np.testing.assert_array_equal(model, START + 4)
    assert {client: count for client, (count, _) in outcome.models.items()} == {"a": 1, "b": 3}
    assert outcome.arrays == {"a": {}, "b": {}}
    _, plain, _ = one_round(answers)
    assert (plain.models, plain.arrays) == ({}, {})


def test_what_the_rules_refuse_does_not_enter():
    """By the client's name, with the rules' reason."""

    class Strict(RoundRules):
        def check(self, sent, returned):
            raise UpdateRefused("Nothing is good enough.")

    model, outcome, strategy = one_round({"a": (1, START)}, rules=Strict())
    assert model is None
    assert outcome == RoundOutcome(refused={"a": "Nothing is good enough."})
    assert strategy.plan.num_examples == {}


def test_whom_a_round_waits_for_is_said(caplog):
    """How many, by which setting, and who is here; then that it is over."""
    caplog.set_level("INFO")
    grid = InProcessGrid(
        Answers({"a": (1, START), "b": (1, START)}), [{"client-id": "a"}, {"client-id": "b"}], {}
    )
    told: list[str] = []
    settings = RunSettings.from_run_config({"start-clients": 3, "wait-timeout-s": 0.6})
    strategy = FedAvg(make_task(TaskSettings()), settings)
    strategy.await_clients(grid, tell=told.append)
    assert told == ["Waiting for 3 client(s) (start-clients), 2 here: a, b.", ""]
    assert "2 here: a, b. At most 1 s more (wait-timeout-s)." in caplog.text


def test_nothing_is_said_where_nobody_is_waited_for():
    """Nor is the ledger written to."""
    grid = InProcessGrid(Answers({"a": (1, START)}), [{"client-id": "a"}], {})
    told: list[str] = []
    settings = RunSettings.from_run_config({"num-clients": 1})
    FedAvg(make_task(TaskSettings()), settings).await_clients(grid, tell=told.append)
    assert told == []
