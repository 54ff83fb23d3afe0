"""The app of every hospital: trains, forgets and measures on its own patients."""

from client import make_client_app
from hospitals.task import load_site, make_task

app = make_client_app(make_task, load_site)
