"""The built-in tasks as an app's own functions are written: `client.app:app` and `server.app:app` are made of them."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from strategies.settings.task_source import Settings, TaskSource
from unlearning import tasks
from unlearning.tasks import Examples, Site, Task, TaskSettings

NO_TABLE = ""
"""The built-in tasks' settings are among those of the federation."""


def make_task(settings: Settings) -> Task:
    """Return the task that the settings name; no data is read.

    Raises:
        ConfigurationError, DataError: settings are wrong, or do not fit each other.
    """
    return tasks.make_task(TaskSettings(**settings))


def load_site(settings: Settings, node_config: Mapping[str, Any]) -> Site:
    """Return the data of the node's partition, or of its own directory.

    Raises:
        ConfigurationError, DataError: settings are wrong, or the data is missing or malformed.
    """
    named = TaskSettings(**settings)
    own = str(node_config.get("data-dir", ""))
    number, count = part_of(settings, node_config) or (0, named.num_clients)
    return tasks.load_site(replace(named, num_clients=count), number, Path(own) if own else None)


def part_of(settings: Settings, node_config: Mapping[str, Any]) -> tuple[int, int] | None:
    """Return which part, of how many, of the dealt-out data a node has; None where it has a directory of its own."""
    if node_config.get("data-dir"):
        return None
    count = int(node_config.get("num-partitions", 0)) or TaskSettings(**settings).num_clients
    return int(node_config.get("partition-id", 0)), count


def load_test(settings: Settings) -> Examples | None:
    """Return the server's test set, if the data set has one.

    Raises:
        ConfigurationError, DataError: settings are wrong, or the data is missing or malformed.
    """
    return tasks.load_server_test(TaskSettings(**settings))


SOURCE = TaskSource.of(make_task, NO_TABLE)
