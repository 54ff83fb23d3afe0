"""Run a worker: `python -m client.worker DIRECTORY`."""

import logging
import sys
from pathlib import Path

from client.worker.paths import WorkerPaths
from client.worker.server import serve

if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    serve(WorkerPaths(Path(sys.argv[1])))
