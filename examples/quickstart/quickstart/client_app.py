"""What a client does with a message."""

from flower_unlearning.client import make_client_app
from quickstart.task import load_site, make_task

app = make_client_app(make_task, load_site)
