"""No secret is in a log, a record, a message or the process list."""

import logging
import re
from pathlib import Path

import pytest

from server.ledger import Ledger
from strategies.tls_files import TlsFiles
from tests.deletion_service import CLIENT_3, submit
from tests.integration.deletion_service.conftest import Start
from tests.programs import run_program
from unlearning.errors import ConfigurationError, RequestError
from unlearning.requests import Granularity, Target

KEY = "my-idempotency-key-4711"


def test_neither_private_keys_nor_idempotency_keys_are_logged_or_recorded(
    ledger: Ledger, start: Start, identities: dict[str, TlsFiles], caplog: pytest.LogCaptureFixture
) -> None:
    """Accepted, repeated, conflicting and malformed requests with a key, at the most talkative level."""
    caplog.set_level(logging.DEBUG)
    operator = start().as_("operator")
    submit(operator, idempotency_key=KEY)
    submit(operator, idempotency_key=KEY)
    for target, key in ((Target(Granularity.CLIENT, "4"), KEY), (CLIENT_3, KEY + "\n"), (CLIENT_3, KEY * 20)):
        with pytest.raises(RequestError) as caught:
            submit(operator, target, idempotency_key=key)
        assert KEY not in str(caught.value)
    said = caplog.text + repr(ledger.refusals()) + repr(ledger.events.page())
    assert len(ledger.refusals()) == 3
    for who in ("server", "operator"):
        key_file = identities[who].key
        assert key_file is not None
        for line in key_file.read_text().splitlines()[1:-1]:
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
    assert status == 4
    assert re.search(r"ledger at postgresql\+psycopg://ada:\*\*\*@127.0.0.1:1/db cannot be used", said)
    assert "hunter2" not in said
