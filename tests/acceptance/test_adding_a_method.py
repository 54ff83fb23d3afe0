"""The method in docs/adding-a-method.md is a real one: it runs in a federation by one registry line."""

import re
from pathlib import Path

import pytest

from server.federation.state import FederationState
from tests.federation import client
from unlearning.methods import registry
from unlearning.requests import Status

DOCUMENT = Path(__file__).parents[2] / "docs" / "adding-a-method.md"


@pytest.fixture
def documented(monkeypatch: pytest.MonkeyPatch):
    """The document's method, registered as a reader would register it."""
    (code,) = re.findall(r"```python\n(.*?)```", DOCUMENT.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, object] = {}
    exec(compile(code, str(DOCUMENT), "exec"), names)
    method = names["RetainedRound"]()  # type: ignore[operator]
    monkeypatch.setattr(registry, "METHODS", {**registry.METHODS, method.info.name: method})
    return method


def test_the_documented_method_serves_a_request(federation, documented):
    """Filed, carried out and reported like any other."""
    one = federation()
    one.run()
    request = one.file(client("2"), documented.info.name, rate=0.5)
    state = one.run(rounds=3)
    assert isinstance(state, FederationState)
    assert one.ledger.get(request.id).status is Status.COMPLETED
    unlearning = next(record for record in one.ledger.rounds() if record.kind == "unlearning")
    assert unlearning.metrics["participants"] == ["0", "1", "3"]


def test_the_documented_method_refuses_a_bad_parameter(federation, documented):
    """At the door."""
    from unlearning.errors import InvalidRequest

    one = federation()
    one.run()
    with pytest.raises(InvalidRequest, match="rate"):
        one.file(client("2"), documented.info.name, rate=-1)
