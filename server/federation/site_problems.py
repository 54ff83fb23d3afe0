"""What is wrong with the set-up of sites, as their answers to training show it.

Data that is dealt out has as many parts as `num-partitions` says, and each site has one of them: a site with another
number trains on data of others, and nothing else would say so. A site whose data cannot be loaded says that itself, as
does one that can take part in nothing, by its version or because it cannot read the run's settings.
"""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from logging import getLogger
from types import MappingProxyType
from typing import Any

from flwr.app import Message

from server.ledger import SITE_PROBLEMS, Ledger, LedgerWriter
from strategies.exchange import Exchange, read_each
from strategies.messages import AHEAD, PART, TRAIN, Json
from unlearning.errors import UpdateRefused
from unlearning.one_line import list_first

_log = getLogger(__name__)
Part = tuple[int, int]
_SHOWN = 5
_AHEAD = (
    "It knows of deletions that this ledger knows no longer: the server was set back to an earlier state, and its "
    "model may hold what was deleted since. Put the newest state back, or have certificates file those deletions again "
    "(docs/how-to-back-up-and-restore.md)."
)


@dataclass(slots=True)
class SiteProblems:
    """What is known of them, by client.

    parts: which part, of how many, each client said it has when it last trained.
    unloaded: why a client could not load its data when it was last asked to train.
    ahead: who knows of deletions that this ledger has said, and says no longer.
    """

    parts: dict[str, Part] = field(default_factory=dict)
    unloaded: dict[str, str] = field(default_factory=dict)
    ahead: set[str] = field(default_factory=set)
    told: Mapping[str, str] | None = None

    def take(
        self,
        messages: Mapping[str, Message],
        done: Exchange,
        ledger: Ledger,
        writer: LedgerWriter,
        unable: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Take in what came of an exchange; the log and the ledger have it at once.

        unable: why clients can take part in nothing.
        """
        for client in [name for name, one in messages.items() if one.metadata.message_type == TRAIN]:
            failure = done.failures.get(client)
            if failure is None or failure.is_final:
                self.parts.pop(client, None)
                self.unloaded.pop(client, None)
            if failure is not None and failure.is_final:
                self.unloaded[client] = failure.reason
            if done.values.get(client, {}).get(AHEAD) is True or (failure is not None and failure.is_ahead):
                self.ahead.add(client)
            elif failure is None or failure.is_final:
                self.ahead.discard(client)
        found, _ = read_each(
            {client: values for client, values in done.values.items() if PART in values}, _part
        )
        self.parts |= found
        set_back = dict.fromkeys(self.ahead, _AHEAD)
        problems = {**misfits(self.parts), **self.unloaded, **set_back, **unable}
        if problems:  # of a client that is forgotten nothing is to be mended
            gone = ledger.forgotten_clients()
            problems = {client: text for client, text in problems.items() if client not in gone}
        told = dict(ledger.facts().get(SITE_PROBLEMS) or {}) if self.told is None else self.told
        for client in sorted(problems):
            if told.get(client) != problems[client]:
                _log.error("Client %s: %s", client, problems[client])
        if problems != told:
            writer.set_facts({SITE_PROBLEMS: problems})
        self.told = problems


def misfits(parts: Mapping[str, Part]) -> dict[str, str]:
    """Say by client what is wrong with its part of the dealt-out data compared with those of the others.

    The number of parts that more than half of the clients have counts as right; where there is none, all are named.
    """
    found: dict[str, str] = {}
    owners: dict[Part, list[str]] = defaultdict(list)
    by_count: dict[int, list[str]] = defaultdict(list)
    for client, (number, count) in sorted(parts.items()):
        owners[number, count].append(client)
        by_count[count].append(client)
    right = next((count for count, clients in by_count.items() if 2 * len(clients) > len(parts)), None)
    for client, (number, count) in parts.items():
        if count == right or len(by_count) == 1:
            continue
        compared = sorted(by_count.keys() - {count}) if right is None else [right]
        elsewhere = " and ".join(f"{other} at {list_first(by_count[other], _SHOWN)}" for other in compared)
        found[client] = (
            f"It has part {number} of {count} of the data; the number of parts is {elsewhere}. Give all sites the same "
            "num-partitions, or they train on data of each other."
        )
    for (number, count), clients in owners.items():
        for client in clients if len(clients) > 1 else ():
            others = list_first([name for name in clients if name != client], _SHOWN)
            found.setdefault(
                client,
                f"It has part {number} of {count} of the data, as has {others}: give each site its own partition-id.",
            )
    return found


def _part(_client: str, values: Json) -> Part:
    """Read which part a client says it has.

    Raises:
        UpdateRefused: it says something else.
    """
    said: Any = values[PART]
    if not (isinstance(said, list) and len(said) == 2 and all(type(one) is int for one in said)):
        raise UpdateRefused("It does not say its part as two numbers.")
    number, count = said
    return number, count
