"""A ClientApp that says which client it is."""

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

app = ClientApp()


@app.query()
def say_who(message: Message, context: Context) -> Message:
    """Answer with the client id of the node's configuration."""
    answer = ConfigRecord({"client-id": str(context.node_config["client-id"])})
    return Message(RecordDict({"answer": answer}), reply_to=message)
