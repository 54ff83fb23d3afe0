"""Where a run's task comes from: a function of the app, and the settings that it is given.

An app's own settings stand in a table of `[tool.flwr.app.config]` that has the name of its package: of

    [tool.flwr.app.config.hospital]
    depth = 3

`hospital.task.make_task` is given `{"depth": 3}`. The built-in tasks (`strategies.built_in`) have no table: they are
given the settings of the group `What is learnt`, which only they understand.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any, TypeAlias

from strategies.settings.run_config import FIELDS, RunSettings
from unlearning.errors import ConfigurationError
from unlearning.tasks.own_code import make_own_task, name_of
from unlearning.tasks.settings import TaskSettings
from unlearning.tasks.task import Examples, Site, Task

Settings: TypeAlias = Mapping[str, Any]
"""What an app's functions are given: numbers, texts and truth values by name."""
MakeTask: TypeAlias = Callable[[Settings], Task]
LoadSite: TypeAlias = Callable[[Settings, Mapping[str, Any]], Site]
"""Reads a client's data, given the app's settings and the node's own configuration."""
LoadTest: TypeAlias = Callable[[Settings], Examples | None]

MADE_BY, TABLE = "made-by", "app-table"
"""Who makes the task, and the table of its settings, among the settings that a state directory keeps of an own app."""

_OF_EVERY_TASK = ("seed", "num_clients")
_OF_BUILT_IN_TASKS = {
    FIELDS[item.name].alias or item.name: item.name
    for item in fields(TaskSettings)
    if item.name not in _OF_EVERY_TASK
}


@dataclass(frozen=True, slots=True, kw_only=True)
class AppSettings:
    """A run's settings: those of the federation, and the app's own."""

    run: RunSettings
    own: Settings


@dataclass(frozen=True, slots=True)
class TaskSource:
    """A function that makes the task, and the table of its settings; empty for those of the built-in tasks."""

    make_task: MakeTask
    table: str

    @classmethod
    def of(cls, make_task: MakeTask, table: str | None = None) -> "TaskSource":
        """Return the source with this function; without a `table`, it has the name of the function's package."""
        return cls(make_task, name_of(make_task).partition(".")[0] if table is None else table)

    def read(self, values: Settings) -> AppSettings:
        """Return the settings in `values` (Flower's `context.run_config`), defaults of the federation's filled in.

        Raises:
            ConfigurationError: lists every wrong setting with what is allowed.
        """
        begin = f"{self.table}."
        own = {
            name.removeprefix(begin): values[name] for name in values if self.table and name.startswith(begin)
        }
        rest = {name: value for name, value in values.items() if not (self.table and name.startswith(begin))}
        wrong = [
            self._refusal(name) for name in rest if "." in name or (self.table and name in _OF_BUILT_IN_TASKS)
        ]
        known = {name: value for name, value in rest.items() if "." not in name}
        try:
            run = RunSettings.from_run_config(known)
        except ConfigurationError as exc:
            raise ConfigurationError([*wrong, *exc.problems]) from exc
        if wrong:
            raise ConfigurationError(wrong)
        return AppSettings(run=run, own=MappingProxyType(own) if self.table else _of_built_in_task(run))

    def task(self, settings: AppSettings) -> Task:
        """Return the task that the app makes.

        Raises:
            AppError: the app's function raised, or returned no task.
        """
        return make_own_task(self.make_task, settings.own)

    def prepared(self, values: Settings) -> Task:
        """Return the task of `values` as the methods train it that they prepare for.

        Raises:
            AppError: the app's function raised, or returned no task.
            ConfigurationError: a setting is wrong, or a method cannot be prepared for with such a task.
        """
        settings = self.read(values)
        return settings.run.prepared_task(self.task(settings))

    def to_keep(self, settings: AppSettings) -> dict[str, Any]:
        """Return every setting by the name that a person types, and of an own app who makes the task."""
        values = settings.run.to_run_config()
        if not self.table:
            return values
        values = {name: value for name, value in values.items() if name not in _OF_BUILT_IN_TASKS}
        own = {f"{self.table}.{name}": value for name, value in settings.own.items()}
        return values | own | {MADE_BY: name_of(self.make_task, ":"), TABLE: self.table}

    def _refusal(self, name: str) -> str:
        if name in _OF_BUILT_IN_TASKS:
            return (
                f"{name}: a setting of the built-in tasks, and the task is made by {name_of(self.make_task)}. Settings "
                f"of your own stand in [tool.flwr.app.config.{self.table}]."
            )
        table = name.partition(".")[0]
        if not self.table:
            return f"{name}: there is no table {table!r}; the built-in tasks have none."
        near = f", did you mean {self.table}?" if get_close_matches(table, [self.table]) else ";"
        return (
            f"{name}: there is no table {table!r}{near} The app's own is [tool.flwr.app.config.{self.table}]."
        )


def _of_built_in_task(run: RunSettings) -> Settings:
    return MappingProxyType({item.name: getattr(run, item.name) for item in fields(TaskSettings)})
