"""The values of the layers that this site trains for itself (`unlearning.local_layers`), by round.

They are kept under what was left out when they were trained. So data that is withheld sends their training back to the
beginning without it; where a deletion is abandoned they go on from where they were; and tombstones erase those alone
that were trained with what may never be used again.
"""

import json

from client.memory import LOCAL, ClientMemory
from unlearning.pseudonyms import merge_keyed
from unlearning.requests import NOTHING, Forget
from unlearning.runtime.json_codec import to_plain
from unlearning.runtime.stores import Arrays, keep_newest, newest


def newest_values(memory: ClientMemory) -> Arrays:
    """Return the values that were trained last; nothing where none were."""
    store = memory.store(LOCAL)
    found = [one for key in store.list_keys() if (one := newest(store, key))]
    return max(found, key=lambda one: one[0])[1] if found else {}


def values_before(memory: ClientMemory, withheld: Forget, number: int) -> Arrays:
    """Return the values that training without `withheld` goes on from in a round; nothing where it begins."""
    found = newest(memory.store(LOCAL), _key(memory, withheld), before=number)
    return found[1] if found else {}


def keep_values(memory: ClientMemory, withheld: Forget, number: int, values: Arrays) -> None:
    """Keep the values of a round without `withheld`, beside those of all that may be used."""
    store, key = memory.store(LOCAL), _key(memory, withheld)
    for other in {*store.list_keys()} - {key, _key(memory, NOTHING)}:
        store.erase(other)
    keep_newest(store, key, number, values)


def _key(memory: ClientMemory, withheld: Forget) -> str:
    left_out, _ = merge_keyed(memory.tombstones(), withheld, memory.keys())
    return json.dumps(to_plain(left_out), sort_keys=True)
