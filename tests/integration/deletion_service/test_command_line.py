"""The command `flower-unlearn` against a real deletion service."""

import io
import json
import sqlite3
from pathlib import Path

import pytest
from rich.console import Console
from typer.testing import CliRunner

from server.cli import app
from server.cli.request_commands import follow
from server.ledger import Ledger
from server.service.calls import REPORT_PRUNED
from server.service.client import DeletionClient
from server.service.grpc_server import RunningServer
from tests.deletion_service import FORGETTING, NOW, LiveLoop, free_port
from tests.integration.deletion_service.conftest import Command
from unlearning.requests import Status

# The command


def test_request_files_one_request_for_each_client(command: Command, ledger: Ledger) -> None:
    """Two clients, two requests, each said on its line."""
    result = command(
        "request",
        "--client",
        "3",
        "--client",
        "4",
        "--method",
        "puf-special",
        "--parameter",
        "unlearning_rate=1",
    )
    assert result.exit_code == 0
    assert result.stdout.splitlines() == [
        "r-000001\treceived\tforget client 3 with puf-special",
        "r-000002\treceived\tforget client 4 with puf-special",
    ]
    assert [item.parameters["unlearning_rate"] for item in ledger.requests.select()] == [1.0, 1.0]


def test_request_reads_sample_ids_from_a_file(command: Command, ledger: Ledger, tmp_path: Path) -> None:
    """One id a line; and a request without a method gets the recommended one."""
    (tmp_path / "ids.txt").write_text("# visits\n17\n21\n")
    result = command("request", "--client", "3", "--samples", str(tmp_path / "ids.txt"))
    assert result.stdout == "r-000001\treceived\tforget 2 samples of client 3 with retrain\n"
    assert ledger.requests.target_of(ledger.requests.get("r-000001")).sample_ids == {"17", "21"}


def test_request_run_twice_with_a_key_files_once(command: Command, ledger: Ledger) -> None:
    """Also for several clients."""
    arguments = ("request", "--client", "3", "--client", "4", "--key", "k")
    assert command(*arguments).stdout == command(*arguments).stdout
    assert len(ledger.requests.select()) == 2


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["request"], 2, "Say what to forget: --client ID"),
        (["request", "--client", "9"], 3, "Refused: There is no client '9'. Known: 3, 4."),
        (["request", "--client", "3", "--method", "magic"], 3, "Refused: Unknown method 'magic'."),
        (["request", "--client", "3", "--parameter", "fast"], 2, "--parameter takes NAME=VALUE, got 'fast'."),
        (["request", "--class", "1", "--client", "3"], 2, "--class concerns every client"),
        (["request", "--class", "-1"], 2, "class label of 0 or more"),
        (["request", "--client", "3", "--samples", "nowhere.txt"], 2, "'nowhere.txt' cannot be read as text"),
        (["status", "r-000009"], 3, "No deletion request 'r-000009'"),
        (["report", "seven"], 3, "No deletion request 'seven'; ids look like r-000007."),
        (["--tls-ca", "nowhere.pem", "clients"], 2, "tls: --tls-ca 'nowhere.pem' cannot be read"),
    ],
)
def test_wrong_use_ends_with_2_and_a_refusal_with_3(
    command: Command, arguments: list[str], code: int, message: str
) -> None:
    """With one message on stderr, without a stack trace, and nothing on stdout."""
    result = command(*arguments)
    assert result.exit_code == code
    assert message in result.stderr
    assert "Traceback" not in result.stderr
    assert result.stdout == ""


def test_one_refused_client_does_not_stop_the_others(command: Command, ledger: Ledger) -> None:
    """What was filed is said, what was refused is said, and the exit code is that of a refusal."""
    result = command("request", "--client", "9", "--client", "4")
    assert result.exit_code == 3
    assert "no client '9'" in result.stderr
    assert "forget client 4" in result.stdout


def test_a_repeated_sample_id_is_refused_with_file_and_lines(command: Command, tmp_path: Path) -> None:
    """The user can go to the line."""
    path = tmp_path / "ids.txt"
    path.write_text("17\n17\n")
    result = command("request", "--client", "3", "--samples", str(path))
    assert result.exit_code == 2
    assert f"{path}: The list of sample ids has repetitions: line 2 repeats '17' of line 1." in result.stderr


def test_without_a_service_the_command_says_so_and_how_to_repeat_safely() -> None:
    """Exit code 4: it was not refused, it is not known."""
    result = CliRunner().invoke(
        app, ["--server", f"127.0.0.1:{free_port()}", "request", "--client", "3", "--key", "k7"]
    )
    assert result.exit_code == 4
    assert "Start it with `flower-unlearn serve`" in result.stderr
    assert "With --key k7 the command can be run again" in result.stderr


def test_status_and_list_print_json_for_scripts(command: Command) -> None:
    """Both describe the request alike."""
    command("request", "--client", "3", "--key", "k")
    one, many = json.loads(command("status", "r-000001", "--json").stdout), command("list", "--json").stdout
    assert json.loads(many) == [one]
    assert (one["status"], one["target"]["client_id"], one["idempotency_key"]) == ("received", "3", "k")


def test_status_shows_why_a_request_failed_and_how_to_go_on(command: Command, loop: LiveLoop) -> None:
    """Reason and next step are lines of the answer."""
    command("request", "--client", "3")
    loop.move("r-000001", Status.FAILED, reason="Client 3 went away.", retryable=True)
    shown = command("status", "r-000001").stdout
    assert "reason\tClient 3 went away." in shown
    assert "advice\tTrying again can help: flower-unlearn retry r-000001" in shown


def test_status_counts_the_attempts_that_have_begun(command: Command, loop: LiveLoop) -> None:
    """None before the first; a request that is completed at once took one."""
    command("request", "--client", "3")
    assert "attempts" not in command("status", "r-000001").stdout
    loop.move("r-000001", *FORGETTING)
    assert "attempts\t1" in command("status", "r-000001").stdout


def test_list_filters_by_status_and_client(command: Command, loop: LiveLoop) -> None:
    """In order of arrival; into a pipe the columns' names alone where there is none."""
    command("request", "--client", "3", "--client", "4")
    loop.move("r-000002", Status.SCHEDULED)

    def listed(*filters: str) -> list[str]:
        return [item["id"] for item in json.loads(command("list", "--json", *filters).stdout)]

    assert listed() == ["r-000001", "r-000002"]
    assert listed("--status", "scheduled") == ["r-000002"]
    assert listed("--client", "3") == ["r-000001"]
    assert "r-000002" in command("list", "--status", "scheduled").stdout
    names = "id\tforget\tmethod\tstatus\tfiled (UTC)\tdue\treason\n"
    assert command("list", "--status", "failed").stdout == names


def test_clients_and_methods_are_tables(command: Command) -> None:
    """Each client and each method has its row."""
    listed = json.loads(command("clients", "--json").stdout)
    assert [(item["client_id"], item["online"], item["forgotten"]) for item in listed] == [
        ("3", True, False),
        ("4", True, False),
    ]
    assert "last seen" in command("clients").stdout
    assert "puf-special" in command("methods").stdout


def test_cancel_and_retry_say_the_new_state(command: Command, loop: LiveLoop) -> None:
    """One line each."""
    command("request", "--client", "3", "--client", "4")
    assert command("cancel", "r-000001").stdout == "r-000001\tcancelled\n"
    loop.move("r-000002", Status.FAILED, retryable=True)
    assert command("retry", "r-000002").stdout == "r-000002\tscheduled\n"


def test_watch_prints_states_waits_and_rounds_with_their_scores(command: Command, loop: LiveLoop) -> None:
    """In a pipe, one line for each thing that happened, and where the report is."""
    command("request", "--client", "3")
    loop.note("r-000001", "client 3 is not online")
    loop.move("r-000001", Status.SCHEDULED, Status.UNLEARNING)
    figures = {"loss": 0.5, "test_score": 0.8125, "seconds": 2.0, "test_metrics": {"roc_auc": 0.9}}
    loop.round(5, "unlearning", "r-000001", participants=["3"], **figures)
    loop.move("r-000001", *FORGETTING[2:])
    result = command("watch", "r-000001")
    assert result.exit_code == 0
    assert "waiting: client 3 is not online" in result.stdout
    assert "request r-000001 unlearning: the model is measured" in result.stdout
    assert (
        "round 5  unlearning  client 3          test accuracy 81.2\u202f%  2.0\u202fs  loss 0.5000, test loss –, "
        "roc_auc 0.9000\n" in result.stdout
    )
    assert "r-000001 is completed. We could not show that the model knows less" in result.stdout
    assert result.stdout.endswith("Its report: flower-unlearn report r-000001\n")


@pytest.mark.parametrize("reason", ["no way", "No way."])
def test_watching_a_request_that_failed_exits_with_1(command: Command, loop: LiveLoop, reason: str) -> None:
    """Scripts can tell."""
    command("request", "--client", "3")
    loop.move("r-000001", Status.FAILED, reason=reason)
    result = command("watch", "r-000001")
    assert result.exit_code == 1
    assert f"r-000001 is failed: {reason.removesuffix('.')}. " in result.stdout


def test_report_writes_both_files(command: Command, loop: LiveLoop, tmp_path: Path) -> None:
    """Byte for byte; their paths are printed."""
    command("request", "--client", "3")
    files = {"report.json": b'{"a": 1}', "report.html": "<p>é</p>".encode()}
    loop.complete("r-000001", tmp_path / "reports", files)
    result = command("report", "r-000001", "--output", str(tmp_path / "out"))
    paths = [Path(line) for line in result.stdout.splitlines()]
    assert [path.name for path in paths] == ["report-r-000001.json", "report-r-000001.html"]
    assert [path.read_bytes() for path in paths] == [*files.values()]


def test_of_a_pruned_report_the_certificate_is_written_and_said_why(
    command: Command, loop: LiveLoop, ledger: Ledger, tmp_path: Path
) -> None:
    """The path first, for scripts."""
    command("request", "--client", "3")
    loop.complete("r-000001", tmp_path / "reports", {"certificate.json": b"{}"})
    ledger.decisions.note_pruned("r-000001", {}, by="retention", now=NOW)
    path, said = command("report", "r-000001", "--output", str(tmp_path / "out")).stdout.splitlines()
    assert (Path(path).name, said) == ("certificate-r-000001.json", REPORT_PRUNED)


def test_a_request_that_an_earlier_deletion_answers_has_that_ones_report(
    command: Command, loop: LiveLoop, tmp_path: Path
) -> None:
    """Its outcome names that one."""
    command("request", "--client", "3")
    loop.complete("r-000001", tmp_path / "reports", {"report.json": b"{}", "report.html": b""})
    command("request", "--client", "3")
    answer = {"answered_by": ["r-000001"]}
    loop.move("r-000002", Status.COMPLETED, reason="Already forgotten: client 3, by r-000001.", result=answer)
    assert "completed. Already forgotten: client 3, by r-000001." in command("watch", "r-000002").stdout
    written = command("report", "r-000002", "--output", str(tmp_path / "out")).stdout.splitlines()
    assert Path(written[0]).read_bytes() == b"{}"


def test_a_terminal_also_shows_what_is_going_on(
    command: Command, service: RunningServer, loop: LiveLoop
) -> None:
    """The request and its present state stand below the lines; a narrow one leaves a round's losses out."""
    command("request", "--client", "3", "--method", "puf-special")
    loop.move("r-000001", Status.SCHEDULED, Status.UNLEARNING)
    loop.round(5, "unlearning", "r-000001", participants=["3"], loss=0.5, test_score=0.8125, seconds=2.0)
    loop.move("r-000001", *FORGETTING[2:])
    console = Console(width=90, force_terminal=True, color_system="standard", file=io.StringIO())
    with DeletionClient(service.address) as client, console.capture() as captured:
        follow(client, "r-000001", console)
    shown = captured.get()
    assert "r-000001, forget client 3 with puf-special: measuring the model, then unlearning …" in shown
    assert "test accuracy 81.2\u202f%  2.0\u202fs" in shown
    assert "loss" not in shown


# What an officer checks


def test_refusals_are_listed(command: Command) -> None:
    """Who, which call, how often and why; as a table and for scripts."""
    names = "at (UTC)\tcaller\trole\tcall\ttimes\treason\n"
    assert command("refusals").stdout == names
    command("status", "r-000007")
    assert "GetRequest" in command("refusals").stdout
    [refusal] = json.loads(command("refusals", "--json").stdout)
    assert (refusal["caller"], refusal["call"], refusal["detail"]["times"]) == ("local", "GetRequest", 1)
    assert "No deletion request 'r-000007'" in refusal["reason"]
    assert command("refusals", "--caller", "bob").stdout == names


def test_a_whole_ledger_is_verified(command: Command, ledger: Ledger) -> None:
    """The head is shown, to be kept, and what was kept is compared."""
    command("request", "--client", "3")
    result = command("verify-ledger")
    assert result.exit_code == 0
    sequence, digest = ledger.events.head()
    assert result.stdout.endswith(f"--kept {sequence}:{digest}\n")
    command("request", "--client", "4")
    assert command("verify-ledger", "--kept", f"{sequence}:{digest}").exit_code == 0


def test_heads_are_kept_in_a_file_and_compared(command: Command, ledger: Ledger, tmp_path: Path) -> None:
    """Each check compares with the last line and adds one; a ledger that was emptied fits none."""
    kept = tmp_path / "another-machine" / "heads.txt"
    kept.parent.mkdir()
    assert command("verify-ledger", "--file", str(kept)).exit_code == 0
    command("request", "--client", "3")
    assert command("verify-ledger", "--file", str(kept)).exit_code == 0
    assert [line.split(":")[0] for line in kept.read_text().splitlines()] == ["1", "2"]
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        for table in ("events", "requests"):
            database.execute(f"DROP TRIGGER {table}_no_delete")
            database.execute(f"DELETE FROM {table}")
    database.close()
    result = command("verify-ledger", "--file", str(kept))
    assert (result.exit_code, "BROKEN" in result.stdout) == (1, True)


@pytest.mark.parametrize(
    ("kept", "message"), [("1:" + "0" * 64, "event 1 is another one"), ("99:" + "0" * 64, "event 99 is gone")]
)
def test_a_rewritten_ledger_is_found_by_what_was_kept(command: Command, kept: str, message: str) -> None:
    """A chain that holds in itself, but is not the one of which the head was kept."""
    command("request", "--client", "3")
    result = command("verify-ledger", "--kept", kept)
    assert result.exit_code == 1
    assert message in result.stdout


@pytest.mark.parametrize("kept", ["x", "1:", "-1:" + "0" * 64, "1:" + "g" * 64, "9" * 30 + ":" + "0" * 64])
def test_a_malformed_head_is_refused(command: Command, kept: str) -> None:
    """Exit code 2 and how it looks."""
    result = command("verify-ledger", f"--kept={kept}")
    assert result.exit_code == 2
    assert "--kept takes NUMBER:HASH" in result.stderr


def test_a_forged_ledger_is_named_broken(command: Command, tmp_path: Path) -> None:
    """Exit code 1 and the number of the event."""
    command("request", "--client", "3")
    with sqlite3.connect(tmp_path / "ledger.db") as database:
        database.execute("DROP TRIGGER events_no_update")
        database.execute("UPDATE events SET actor = 'eve'")
    database.close()
    result = command("verify-ledger")
    assert result.exit_code == 1
    assert "BROKEN: Event 1 " in result.stdout


# How commands print and end


@pytest.mark.parametrize(
    "arguments",
    [["list"], ["status", "r-000001"], ["verify-ledger"], ["hold", "r-000001", "--reason", "x"]],
)
def test_every_kind_of_output_is_json_on_demand(command: Command, arguments: list[str]) -> None:
    """One document on stdout and no sentence beside it."""
    command("request", "--client", "3")
    assert json.loads(command(*arguments, "--json").stdout)


def test_watch_prints_a_json_object_for_each_thing_that_happens(command: Command, loop: LiveLoop) -> None:
    """The request first and last, its events and the rounds between."""
    command("request", "--client", "3")
    loop.move("r-000001", Status.SCHEDULED)
    loop.round(5, "training")
    loop.move("r-000001", *FORGETTING[1:])
    told = [json.loads(line) for line in command("watch", "r-000001", "--json").stdout.splitlines()]
    kinds = [item["type"] for item in told]
    assert (kinds[0], kinds[-1], set(kinds)) == (
        "DeletionRequest",
        "DeletionRequest",
        {"DeletionRequest", "Event", "RoundRecord"},
    )
    assert told[-1]["status"] == "completed"


def test_a_terminal_gets_a_table_and_a_pipe_gets_tabs(
    command: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A cell's own line ends cannot break a line of the pipe."""
    command("request", "--client", "3", "--note", "two\nlines")
    lines = command("list").stdout.splitlines()
    assert [len(line.split("\t")) for line in lines] == [7, 7]
    assert "note\ttwo lines\n" in command("status", "r-000001").stdout
    monkeypatch.setattr("strategies.command_line._is_terminal", lambda: True)
    assert "┏" in command("list").stdout
    assert "request:     r-000001\n" in command("status", "r-000001").stdout
    assert command("refusals").stdout == "No refusals.\n"
