"""Clients of one federation in one process: each keeps its data loaded from one message to the next.

Flower starts a process for every message on a deployment, which loads what it needs. Where clients answer in the
caller's process (`strategies.in_process_grid`), thousands of messages would do that again for each.
"""

from collections import defaultdict
from collections.abc import Callable

from flwr.app import Context, Message

from client.answering import answer as answer_message
from client.app import HANDLERS
from client.sites import SiteCache, SiteLoader
from strategies import built_in
from unlearning.runtime.durable_files import keep_private


def clients_in_process() -> Callable[[Message, Context], Message]:
    """Return what answers as `client.app` does, for the nodes of one federation; make one for each."""
    loader = SiteLoader(built_in.SOURCE, built_in.load_site)
    sites: defaultdict[int, SiteCache] = defaultdict(lambda: SiteCache(loader))

    def answer(message: Message, context: Context) -> Message:
        keep_private()
        handle = HANDLERS[message.metadata.message_type]
        content = answer_message(handle, message, context, sites[context.node_id])
        return Message(content, reply_to=message)

    return answer
