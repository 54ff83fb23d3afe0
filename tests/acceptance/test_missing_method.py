"""A method of a package of one's own that one client's machine lacks."""

import logging
from dataclasses import replace

from client.app import app as client_app
from tests.federation import client
from unlearning.methods import registry
from unlearning.methods.puf import PufRegular


class Own(PufRegular):
    """A method that only its package knows."""

    info = replace(PufRegular.info, name="own-method", title="Own method")


def test_a_client_whose_machine_lacks_the_method_is_named(federation, monkeypatch, caplog):
    """The others carry the deletion out; the log and the round's record say who could not, and why."""
    caplog.set_level(logging.INFO)
    with_own = {**registry.METHODS, "own-method": Own()}
    without = dict(registry.METHODS)
    monkeypatch.setattr(registry, "METHODS", with_own)
    one = federation()

    def app(message, context):
        if context.node_config["client-id"] != "3":
            return client_app(message, context)
        with monkeypatch.context() as there:
            there.setattr(registry, "METHODS", without)
            return client_app(message, context)

    one.grid._client_app = app
    one.run()
    one.forget(client("1"), "own-method", rounds=3)
    (record,) = [record for record in one.ledger.rounds() if record.kind == "unlearning"]
    assert record.metrics["participants"] == ["0", "1", "2"]
    assert record.metrics["failed"]["3"].startswith("Unknown method 'own-method'. The methods are: ")
    assert any("Client 3 did not do its part of the work: Unknown method" in line for line in caplog.messages)
