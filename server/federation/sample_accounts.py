"""What sites say of their training with differential privacy for single samples.

The figures are each site's own: the server takes the newest into the ledger's facts, counts groups of samples by them,
and says in reports whose statement they are.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from logging import getLogger
from typing import Any

from server.ledger import SAMPLE_PRIVACY, Ledger, LedgerWriter
from server.requests.training_privacy import SamplePrivacy
from strategies.exchange import read_each
from strategies.messages import SAMPLE_ACCOUNT, Json
from strategies.settings.run_config import RunSettings
from unlearning.certified.private_training import SampleAccount
from unlearning.errors import MethodFailed, UpdateRefused
from unlearning.requests import Target
from unlearning.runtime.json_codec import from_plain, to_plain

_log = getLogger(__name__)
_MOST_KINDS = 1_000
"""Of steps with other noise or another share, as where a site's number of samples changes."""
_OWN_WORD = "The figures are the client's own statement, which the server has not checked."
_ASSUMED = (
    "It assumes that the site draws samples and noise as it says and keeps both secret, and that neither the number of "
    "rounds nor what is deleted is chosen by a look at the models. The number of the site's samples counts as known. "
    "It speaks of models: not of losses, counts and scores that the site reports, which have no noise."
)


def start_sample_accounts(settings: RunSettings, ledger: Ledger, writer: LedgerWriter) -> None:
    """Write the limit of what a deletion may state into the ledger's facts, where sites train with such privacy."""
    if not settings.hides_samples:
        return
    known = SamplePrivacy.of(ledger.facts())
    limit = settings.privacy_deletion_epsilon
    now = SamplePrivacy(limit=limit) if known is None else replace(known, limit=limit)
    writer.set_facts({SAMPLE_PRIVACY: to_plain(now)})


def note_sample_accounts(ledger: Ledger, writer: LedgerWriter, answers: Mapping[str, Json]) -> str:
    """Take what clients say into the ledger's facts; return all that is known in a sentence, empty if there is none."""
    said = {client: values for client, values in answers.items() if SAMPLE_ACCOUNT in values}
    known = SamplePrivacy.of(ledger.facts()) if said else None
    if known is None:
        return ""
    found, refused = read_each(said, _account)
    for client, reason in refused.items():
        _log.error("The account of client %s is not used: %s", client, reason)
    now = known
    for client, account in found.items():
        now = now.hearing(client, account)
    if now != known:
        writer.set_facts({SAMPLE_PRIVACY: to_plain(now)})
    _log.info("Privacy: %s", now.text)
    return now.text


def _account(_client: str, values: Json) -> SampleAccount:
    """Read what a client says.

    Raises:
        UpdateRefused: it is no account.
    """
    found = from_plain(SampleAccount, values[SAMPLE_ACCOUNT], exactly=True)
    counts = all(
        0 <= one.noise_multiplier < math.inf and 0 < one.sampling <= 1 and 0 <= one.count <= 10**9
        for one in found.rounds
    )
    if not (counts and len(found.rounds) <= _MOST_KINDS and 0 < found.delta < 1):
        raise UpdateRefused("It is no account of steps with noise.")
    return found


def covered_samples(ledger: Ledger, targets: Sequence[Target]) -> dict[str, Any]:
    """Return the account of a deletion of samples that their client's training covers, as reports have it.

    targets: samples of one client.

    Raises:
        MethodFailed: sites do not train so, or what is covered is too weak.
    """
    known, client = SamplePrivacy.of(ledger.facts()), targets[0].client_id
    if known is None or client is None:
        raise MethodFailed("Sites do not train with noise for samples.", retryable=False, code="not-private")
    gone = len(ledger.exclusions().including(targets).of(client).sample_ids)
    if reason := known.weakness(client, gone):
        raise MethodFailed(reason, retryable=False, code="not-covered")
    account, epsilon = known.clients[client], known.epsilon_for(client, gone)
    steps = sum(one.count for one in account.rounds)
    noise = min(one.noise_multiplier for one in account.rounds)
    text = (
        f"On the word of client {client}, not certified: it has trained with differential privacy for single samples, "
        f"and the model stays as it is. All models are indistinguishable, within ε = {epsilon:.4g} and "
        f"δ = {account.delta:g}, from those of a process that never had the {gone:,} sample(s) that are deleted of it "
        f"so far: in {steps:,} steps each sample was drawn with a chance of at most "
        f"{max(one.sampling for one in account.rounds):.4g}, and the sum of shortened gradients got Gaussian noise of "
        f"{noise:.4g} times that length or more. {_ASSUMED}"
    )
    return {
        "statement": text,
        "basis": "empirical",
        "sigma": noise,
        "sensitivity": float(gone),
        "sensitivity_is_bound": False,
        "unmet": [_OWN_WORD],
        "epsilon_of_this_release": epsilon,
        "num_releases": steps,
        "spent_epsilon": epsilon,
        "delta": account.delta,
        "budget_epsilon": None,
    }
