"""Asks sites which samples they know: those of requests before they are scheduled, and of plans.

The server knows no ids but those that it is given, hashed, and no labels; the site says which of them it does not have
and which are of classes that are forgotten already.
"""

from collections.abc import Mapping

from server.federation.clients import Clients
from strategies.exchange import read_each
from strategies.messages import KNOWN, SUBJECT_KEY, Json
from unlearning.requests import Forget, KnownSamples
from unlearning.runtime.json_codec import from_plain, to_plain


def ask_sites(clients: Clients, asked: Mapping[str, frozenset[str]], number: int) -> dict[str, KnownSamples]:
    """Return what clients say of samples, by client; without those that are not online or give no usable answer.

    number: of the round that the federation is in.
    """
    plan, members = clients.fedavg.plan, clients.online_among(asked)
    if not members:
        return {}

    def question(client: str) -> Json:
        values: Json = {"forget": to_plain(Forget(sample_ids=asked[client]))}
        if plan.subject_keys is not None:
            values[SUBJECT_KEY] = plan.subject_keys.of(client).hex()
        return values

    done = clients.exchange(plan.messages(KNOWN, number, members, question))
    found, refused = read_each(
        done.values, lambda client, said: from_plain(KnownSamples, said).only(asked[client])
    )
    clients.refused |= refused
    return found


def answer_questions(clients: Clients, number: int) -> None:
    """Answer the questions that the ledger has, as far as their clients are online; others wait for the next look."""
    questions = clients.ledger.site_questions.open()
    if not questions:
        return
    asked: dict[str, frozenset[str]] = {}
    for client, ids in questions.values():
        asked[client] = asked.get(client, frozenset()) | ids
    found = ask_sites(clients, asked, number)
    clients.ledger.site_questions.answer(
        {key: found[client].only(ids) for key, (client, ids) in questions.items() if client in found}
    )
