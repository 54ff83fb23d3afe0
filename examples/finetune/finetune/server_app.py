"""The app of the server: rounds, deletion requests, reports."""

from finetune.task import load_test, make_task
from server import make_server_app

app = make_server_app(make_task, load_test)
