"""Whatever bytes, messages, files and settings arrive: an answer with a sentence, never a crash or a stack trace.

What is accepted is stored as it was sent, and nothing else is stored.
"""

import contextlib
import json
import string
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from server.cli import app
from server.federation.scripted_requests import parse_requests
from server.ledger import Ledger
from server.service import deletion_pb2 as pb
from server.service.grpc_server import RunningServer, serve
from server.service.limits import Limits
from strategies.settings.run_config import RunSettings
from tests.deletion_service import SERVICE, LiveLoop, answer
from tests.programs import run_program
from unlearning.errors import ConfigurationError
from unlearning.requests import parse_sample_ids

CALLS = sorted(SERVICE.methods_by_name)
# The answers of a service that knows what it does: nothing unexpected (INTERNAL, UNKNOWN), nothing that hangs.
ORDERLY = {
    grpc.StatusCode.OK,
    grpc.StatusCode.INVALID_ARGUMENT,
    grpc.StatusCode.NOT_FOUND,
    grpc.StatusCode.ALREADY_EXISTS,
    grpc.StatusCode.FAILED_PRECONDITION,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
}
# One service answers all examples; what an example leaves in the ledger is part of the next one's trouble.
FUZZ = settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))

texts = st.one_of(
    st.text(max_size=30),
    st.sampled_from(
        ["", "3", "r-000001", "puf-special", "client", "\x00", "\x1b[2J", "x" * 300, "../../etc"]
    ),
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(st.characters(codec=None), max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
json_texts = st.one_of(
    texts,
    json_values.map(lambda value: json.dumps(value)),
    st.sampled_from(
        ["[" * 5000, '{"unlearning_rate": ' + "9" * 5000 + "}", '{"\\ud800": 1}', '{"a": 1e999}']
    ),
)
VALUES: dict[int, st.SearchStrategy[Any]] = {
    FieldDescriptor.TYPE_STRING: texts,
    FieldDescriptor.TYPE_INT32: st.integers(-(2**31), 2**31 - 1),
    FieldDescriptor.TYPE_INT64: st.integers(-(2**63), 2**63 - 1),
    FieldDescriptor.TYPE_DOUBLE: st.floats(),
    FieldDescriptor.TYPE_BOOL: st.booleans(),
}
# Of fields in which a text would seldom make sense.
SENSIBLE: dict[str, st.SearchStrategy[Any]] = {
    "granularity": st.sampled_from(["client", "sample", "class"]) | st.text(max_size=30),
    "client_id": st.sampled_from(["", "3"]) | texts,
    "method": st.just("puf-special") | texts,
    "statuses": st.sampled_from(["received"]) | texts,
    "parameters_json": json_texts,
    "received_on": st.sampled_from(["", "2026-03-01"]) | texts,
    "due_on": st.just("") | texts,
    "ground": st.sampled_from(["", "a"]) | texts,
}


def message_of(kind: Descriptor) -> st.SearchStrategy[Message]:
    """Messages of a kind, with anything in any field."""
    return st.builds(GetMessageClass(kind), **{field.name: value_of(field) for field in kind.fields})


def value_of(field: FieldDescriptor) -> st.SearchStrategy[Any]:
    is_message = field.type == FieldDescriptor.TYPE_MESSAGE
    one = message_of(field.message_type) if is_message else SENSIBLE.get(field.name, VALUES.get(field.type))
    assert one is not None, f"a new type of field needs a strategy: {field.name}"
    if field.is_repeated:
        return st.lists(one, max_size=4)
    return one if field.containing_oneof is None else st.none() | one


@st.composite
def submissions(draw: st.DrawFn) -> Message:
    """A sound request about a class, but for at most two of its fields."""
    kind: Any = pb.SubmitRequestRequest.DESCRIPTOR
    target = pb.Target(granularity="class", class_label=draw(st.integers(0, 999)))
    changed = draw(st.sets(st.sampled_from(sorted(kind.fields_by_name)), max_size=2))
    given = {name: draw(value_of(kind.fields_by_name[name])) for name in sorted(changed)}
    return pb.SubmitRequestRequest(**{"target": target, "method": "puf-special", **given})


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("service")


@pytest.fixture(scope="module")
def ledger(directory: Path) -> Iterator[Ledger]:
    with contextlib.closing(Ledger.open(f"sqlite:///{directory / 'ledger.db'}")) as opened:
        LiveLoop(opened)
        yield opened


@pytest.fixture(scope="module")
def fuzzed(directory: Path, ledger: Ledger) -> Iterator[RunningServer]:
    limits = Limits(operator_calls_per_s=1e6)
    running = serve(ledger, directory / "reports", "127.0.0.1:0", limits=limits)
    yield running
    running.stop(0)


@pytest.fixture(scope="module")
def accepted() -> set[tuple[object, ...]]:
    """What the accepted requests asked for."""
    return set()


def stored(ledger: Ledger) -> set[tuple[object, ...]]:
    """What the ledger's requests ask for."""
    return {
        (
            one.target.granularity.value,
            one.target.client_id or "",
            one.target.class_label,
            one.target.num_samples,
            one.method,
        )
        for one in ledger.requests.select()
    }


@pytest.fixture(scope="module")
def channel(fuzzed: RunningServer) -> Iterator[grpc.Channel]:
    with grpc.insecure_channel(fuzzed.address) as opened:
        yield opened


@FUZZ
@given(name=st.sampled_from(CALLS), raw=st.binary(max_size=200))
def test_arbitrary_bytes_get_an_orderly_answer(channel: grpc.Channel, name: str, raw: bytes) -> None:
    """Bytes that are no message are an invalid argument, whichever call they were sent to."""
    status, message = answer(channel, name, raw)
    assert status in ORDERLY, message
    assert (status is grpc.StatusCode.OK) == (message == "")


@settings(FUZZ, max_examples=30)
@given(data=st.data())
def test_arbitrary_messages_get_an_orderly_answer(
    channel: grpc.Channel, accepted: set[tuple[object, ...]], data: st.DataObject
) -> None:
    """Control characters, huge numbers, deep JSON, half surrogates: refused with a sentence, or served."""
    name = data.draw(st.sampled_from(["SubmitRequest", *CALLS]))
    kind = SERVICE.methods_by_name[name].input_type
    sent: Any = data.draw(submissions() if name == "SubmitRequest" else message_of(kind))
    status, message = answer(channel, name, sent.SerializeToString())
    assert status in ORDERLY, message
    assert "Traceback" not in message
    if name == "SubmitRequest" and status is grpc.StatusCode.OK:
        target = sent.target
        label = target.class_label if target.HasField("class_label") else None
        samples = len(set(target.sample_ids))
        accepted.add((target.granularity, target.client_id, label, samples, sent.method))


def test_after_all_that_the_ledger_is_whole(
    channel: grpc.Channel, ledger: Ledger, accepted: set[tuple[object, ...]]
) -> None:
    """The chain holds, accepted requests are there as they were sent and no others, and the service still answers."""
    for name in ("VerifyLedger", "ListRefusals", "ListRequests"):
        assert answer(channel, name, b"") == (grpc.StatusCode.OK, "")
    assert ledger.events.verify() == ""
    assert stored(ledger) == accepted
    print("ACC", len(accepted), accepted)


# The command line's files


@settings(FUZZ, max_examples=15)
@given(content=st.binary(max_size=100) | st.text(max_size=50).map(str.encode))
def test_a_file_of_sample_ids_may_hold_anything(
    fuzzed: RunningServer, ledger: Ledger, tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    """Filed with each of its ids, or refused with one message and nothing filed."""
    before = {one.id for one in ledger.requests.select()}
    file = tmp_path_factory.mktemp("ids") / "ids"
    file.write_bytes(content)
    arguments = ["--server", fuzzed.address, "request", "--client", "3", "--samples", str(file)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code in (0, 2)
    assert result.exception is None or isinstance(result.exception, SystemExit)
    assert "Traceback" not in result.output
    print("EX", result.exit_code)
    filed = [one.target.num_samples for one in ledger.requests.select() if one.id not in before]
    assert filed == ([len(parse_sample_ids(content.decode()))] if result.exit_code == 0 else [])


def test_the_sites_command_explains_a_file_that_is_no_text(tmp_path: Path) -> None:
    """One sentence that names it, and the exit code of what was given wrongly."""
    (tmp_path / "ids").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "state").mkdir()
    given = ("--state-dir", str(tmp_path / "state"), "--samples", str(tmp_path / "ids"))
    status, said = run_program("flower-unlearn-site", "request", *given)
    assert status == 2
    assert said.startswith(f"'{tmp_path / 'ids'}' cannot be read as text in UTF-8")


@settings(FUZZ, max_examples=10)
@given(content=st.binary(max_size=60))
def test_a_tls_file_may_hold_anything(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    """A service with a damaged certificate or key does not start, and says so."""
    directory = tmp_path_factory.mktemp("tls")
    (directory / "file").write_bytes(content)
    tls = [part for name in ("ca", "cert", "key") for part in (f"--tls-{name}", str(directory / "file"))]
    arguments = ["serve", "--state-dir", str(directory), "--address", "127.0.0.1:0", *tls]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 2
    assert "setting is wrong" in result.output


# Configuration

SETTING_NAMES = sorted(RunSettings().to_run_config())
setting_values = st.one_of(st.booleans(), st.integers(), st.floats(), st.text(max_size=20), json_values)


@FUZZ
@given(values=st.dictionaries(st.sampled_from(SETTING_NAMES) | texts, setting_values, max_size=4))
def test_a_run_configuration_may_hold_anything(values: dict[str, Any]) -> None:
    """It is taken as it can be written down, or refused with the one error that the command line shows."""
    with contextlib.suppress(ConfigurationError):
        settings = RunSettings.from_run_config(values)
        assert RunSettings.from_run_config(settings.to_run_config()) == settings


@FUZZ
@given(text=st.text(st.sampled_from(string.ascii_lowercase + "=;, 0123456789-é\x00"), max_size=60) | texts)
def test_scripted_requests_may_say_anything(text: str) -> None:
    """Each entry is read, or all are refused likewise."""
    with contextlib.suppress(ConfigurationError):
        assert len(parse_requests(text)) == sum(bool(entry.strip()) for entry in text.split(";"))


@FUZZ
@given(
    values=st.fixed_dictionaries(
        {}, optional={name: st.floats() | st.integers() for name in Limits.__dataclass_fields__}
    )
)
def test_limits_may_be_any_numbers(values: dict[str, Any]) -> None:
    """They are taken where they bound something, or refused likewise."""
    with contextlib.suppress(ConfigurationError):
        taken = Limits(**values)
        assert all(0 < getattr(taken, name) < float("inf") for name in Limits.__dataclass_fields__)
