"""The ClientApp: which message goes to which handler. Flower runs `client.app:app`, or an app of your own:

app = make_client_app(make_task, load_site)
"""

import signal
import sys
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable, Mod

from client.answering import Handler
from client.answering import answer as answer_message
from client.handlers import HANDLERS
from client.mods import checked_mods
from client.site_work import SiteCache, SiteLoader
from flower_unlearning_names import refuse_shadows
from strategies import built_in
from strategies.settings.task_source import LoadSite, MakeTask, TaskSource
from unlearning.runtime.durable_files import keep_private


def make_client_app(
    make_task: MakeTask, load_site: LoadSite, *, table: str | None = None, mods: Sequence[Mod] = ()
) -> ClientApp:
    """Return the ClientApp of a federation that can forget, with a task and data of your own.

    make_task: `make_task(settings) -> Task`, the same on server and clients.
    load_site: `load_site(settings, node_config) -> Site`, this client's data.
    table: of the settings, in `[tool.flwr.app.config]`; the name of make_task's package, if not given.
    mods: Flower's or your own, around training and what unlearning methods ask for (`client.mods`).

    Raises:
        ConfigurationError: a module of yours has the name of a package of ours; a mod cannot be called.
    """
    refuse_shadows()
    return _App(make_task, load_site, table, checked_mods(mods))


class _App(ClientApp):
    """A ClientApp that is sent to another process by what it is made of.

    Ray is given the app with every message of a simulation. The functions around each handler, Flower's and ours, are
    closures, whose code would travel each time.
    """

    def __init__(
        self, make_task: MakeTask, load_site: LoadSite, table: str | None, mods: tuple[Mod, ...]
    ) -> None:
        super().__init__(mods=[end_at_sigterm, keep_files_private])
        self._made_of = make_task, load_site, table, mods
        sites = SiteLoader(TaskSource.of(make_task, table), load_site, mods)
        for kind, handle in HANDLERS.items():
            category, _, action = kind.partition(".")
            getattr(self, category)(action or "default")(_answer_by(handle, sites))

    def __reduce__(self) -> tuple[type["_App"], tuple[MakeTask, LoadSite, str | None, tuple[Mod, ...]]]:
        return _App, self._made_of


def keep_files_private(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Make what this process writes unreadable for others on its machine, before it writes anything."""
    keep_private()
    return call_next(message, context)


def end_at_sigterm(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Let SIGTERM end this message's process as SIGKILL does, after which Flower gives the message up in a minute.

    With Flower's own handler the process ends without an answer, and its SuperNode waits for one without end.
    """
    if Path(sys.argv[0]).name == "flwr-clientapp":  # not in a simulation, whose processes are Ray's
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return call_next(message, context)


def _answer_by(handle: Handler, sites: SiteLoader) -> Callable[[Message, Context], Message]:
    def answer(message: Message, context: Context) -> Message:
        return Message(answer_message(handle, message, context, sites), reply_to=message)

    return answer


app = make_client_app(built_in.make_task, built_in.load_site, table=built_in.NO_TABLE)


def clients_in_process(
    source: TaskSource = built_in.SOURCE, load_site: LoadSite | None = None
) -> Callable[[Message, Context], Message]:
    """Return what answers as `app` does, or an app of your own, for the nodes of one federation; make one for each.

    Flower starts a process for every message on a deployment, which loads the data it needs. Where clients answer in
    the caller's process (`strategies.in_process_grid`), each keeps its data loaded from one message to the next.
    """
    loader = SiteLoader(source, load_site or built_in.load_site)
    sites: defaultdict[int, SiteCache] = defaultdict(lambda: SiteCache(loader))

    def answer(message: Message, context: Context) -> Message:
        keep_private()
        handle = HANDLERS[message.metadata.message_type]
        content = answer_message(handle, message, context, sites[context.node_id])
        return Message(content, reply_to=message)

    return answer
