"""Logging of the server side: lines for people, or one JSON object a line for a log collector.

`FLOWER_UNLEARNING_LOG_FORMAT=json` in the environment decides for every process: the ServerApp, the deletion
service and the supervisor. The ServerApp's lines go where Flower's go, so that `flwr run --stream` shows them.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import Any

from unlearning.errors import ConfigurationError

PACKAGES = ("server", "strategies", "unlearning", "client")
FORMAT_VARIABLE = "FLOWER_UNLEARNING_LOG_FORMAT"
_TEXT = "%(asctime)s %(levelname)s %(name)s: %(message)s"
# What every LogRecord has; anything else was given with `extra=`.
_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonLines(logging.Formatter):
    """One JSON object a record: `time` (UTC), `level`, `logger`, `message`, `process`, what `extra` gave."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the record on one line."""
        fields: dict[str, Any] = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False, default=str)


def is_json_wanted() -> bool:
    """Return whether the environment asks for JSON lines.

    Raises:
        ConfigurationError: it asks for something else than `text` or `json`.
    """
    wanted = os.environ.get(FORMAT_VARIABLE, "text") or "text"
    if wanted not in ("text", "json"):
        raise ConfigurationError([f"{FORMAT_VARIABLE}: {wanted!r} is no format; use text or json."])
    return wanted == "json"


def log_to_stderr() -> None:
    """Send all log lines of this process to stderr, in the format that is wanted.

    Raises:
        ConfigurationError: the format is not known.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(JsonLines() if is_json_wanted() else logging.Formatter(_TEXT))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("alembic").setLevel(logging.WARNING)  # a line for each of its own plugins


def log_to_flower() -> None:
    """Send this project's log lines where Flower's go, as JSON if wanted; calling it twice changes nothing.

    Raises:
        ConfigurationError: the format is not known.
    """
    flower = logging.getLogger("flwr")
    if is_json_wanted() and not any(isinstance(handler.formatter, JsonLines) for handler in flower.handlers):
        # Flower's own handler has its formats built in; stderr is what Flower sends on to `--stream`.
        handler = logging.StreamHandler(sys.stderr)
        handler.setFormatter(JsonLines())
        flower.handlers[:] = [handler]
    for name in PACKAGES:
        logger = logging.getLogger(name)
        logger.setLevel(logging.INFO)
        logger.handlers = flower.handlers
        logger.propagate = not flower.handlers
