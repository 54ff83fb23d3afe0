"""The app of every site: trains, forgets and measures on its own pictures."""

from client import make_client_app
from finetune.task import load_site, make_task

app = make_client_app(make_task, load_site)
