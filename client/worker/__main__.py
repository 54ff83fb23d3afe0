"""Run a worker: `python -m client.worker DIRECTORY`."""

import logging
import sys
from pathlib import Path

from client.worker.places import WorkerPlaces
from client.worker.server import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    serve(WorkerPlaces(Path(sys.argv[1])))
