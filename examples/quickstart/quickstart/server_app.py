"""What the server does in a run."""

from flower_unlearning.server import make_server_app
from quickstart.task import make_task

app = make_server_app(make_task)
