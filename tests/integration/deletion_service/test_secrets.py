"""No secret is in a log, a record, a message or the process list."""

import logging
import re
from pathlib import Path

import pytest

from server.api.client import DeletionClient
from server.api.server import serve
from server.ledger import Ledger
from tests.certificates import Authority
from tests.deletion_service import LiveLoop, submit
from tests.programs import run_program
from unlearning.errors import ConfigurationError, RequestError
from unlearning.requests import Granularity, Target

KEY = "my-idempotency-key-4711"


def test_neither_private_keys_nor_idempotency_keys_are_logged_or_recorded(
    ledger: Ledger, loop: LiveLoop, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Accepted, repeated, conflicting and malformed requests with a key, at the most talkative level."""
    authority = Authority(tmp_path)
    server, operator = authority.certify("server"), authority.certify("ada", "operator")
    caplog.set_level(logging.DEBUG)
    running = serve(ledger, tmp_path, "127.0.0.1:0", server)
    with DeletionClient(running.address, operator) as client:
        submit(client, idempotency_key=KEY)
        submit(client, idempotency_key=KEY)
        for target, key in ((Target(Granularity.CLIENT, "4"), KEY), (None, KEY + "\n"), (None, KEY * 20)):
            with pytest.raises(RequestError) as caught:
                submit(client, *filter(None, [target]), idempotency_key=key)
            assert KEY not in str(caught.value)
    running.stop(0)
    said = caplog.text + repr(ledger.refusals()) + repr(ledger.events())
    assert len(ledger.refusals()) == 3
    for files in (server, operator):
        assert files.key is not None
        for line in files.key.read_text().splitlines()[1:-1]:
            assert line not in said
    assert KEY not in said


@pytest.mark.parametrize(
    "url",
    [
        "postgresql:ada:hunter2@host/db",
        "mysql://ada:hunter2@host/db",
        "hunter2",
        "postgresql://ada:hunter2@h:port/db",
    ],
)
def test_a_wrong_ledger_url_is_not_repeated_with_its_password(url: str) -> None:
    """A message of a setting ends up in the service's log."""
    with pytest.raises(ConfigurationError) as caught:
        Ledger.open(url)
    assert "hunter2" not in str(caught.value)


def test_the_ledgers_password_is_not_in_the_process_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It can be given by a variable, and neither the command nor the refusal of the database shows it."""
    monkeypatch.setenv("FLOWER_UNLEARNING_LEDGER", "postgresql://ada:hunter2@127.0.0.1:1/db")
    status, said = run_program("flower-unlearn", "serve", "--state-dir", str(tmp_path))
    assert status == 1
    assert re.search(r"ledger at postgresql\+psycopg://ada:\*\*\*@127.0.0.1:1/db cannot be used", said)
    assert "hunter2" not in said
