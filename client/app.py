"""The ClientApp: which message goes to which handler. Run by Flower as `client.app:app`.

Every message starts a new Python process on a deployment, so what is heavy (torch, the data) is imported
by the handler that needs it.
"""

from flwr.app import Context, Message
from flwr.clientapp import ClientApp
from flwr.clientapp.typing import ClientAppCallable

from unlearning.durable_files import keep_private


def keep_files_private(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Make what this process writes unreadable for others on its machine, before it writes anything."""
    keep_private()
    return call_next(message, context)


app = ClientApp(mods=[keep_files_private])


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model locally."""
    from client.handlers import handle_train

    return Message(handle_train(message, context), reply_to=message)


@app.train("unlearn")
def unlearn(message: Message, context: Context) -> Message:
    """Do one step of an unlearning method."""
    from client.handlers import handle_unlearn

    return Message(handle_unlearn(message, context), reply_to=message)


@app.train("session")
def session(message: Message, context: Context) -> Message:
    """Answer further messages over a stream of its own."""
    from client.session import handle_session

    return Message(handle_session(message, context), reply_to=message)


@app.train("shadows")
def train_shadows(message: Message, context: Context) -> Message:
    """Train this client's shadow models for one round."""
    from client.shadows import handle_train_shadows

    return Message(handle_train_shadows(message, context), reply_to=message)


@app.evaluate()
def measure(message: Message, context: Context) -> Message:
    """Measure a model on the client's own data."""
    from client.handlers import handle_measure

    return Message(handle_measure(message, context), reply_to=message)


@app.evaluate("shadows")
def fit_shadows(message: Message, context: Context) -> Message:
    """Compute what the shadow models make of the client's own data."""
    from client.shadows import handle_fit_shadows

    return Message(handle_fit_shadows(message, context), reply_to=message)


@app.query("notice")
def notice(message: Message, context: Context) -> Message:
    """Take in what every message says: what is forgotten for good."""
    from client.handlers import handle_notice

    return Message(handle_notice(message, context), reply_to=message)


@app.query("whoami")
def whoami(message: Message, context: Context) -> Message:
    """Say which client this node declares itself to be."""
    from client.handlers import handle_whoami

    return Message(handle_whoami(context), reply_to=message)
