"""What the rounds of a federation were trained with, and which settings a run that goes on may change.

Methods that are prepared for work with earlier rounds: FedEraser and SISA repeat them, HF-online adds what they gave.

    local training (epochs, batch size, optimizer, rates, ...)    is kept with the rounds; a change counts from then on
    what is learnt, from which data; options that `fixed` names   are refused a change while something is kept
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from strategies.settings.groups import TrainingSchedule
from strategies.settings.run_config import FIELDS, RunSettings
from unlearning.errors import ConfigurationError
from unlearning.tasks.settings import TaskSettings
from unlearning.training import TrainingSettings

_TRAINING = (*(item.name for item in fields(TrainingSchedule)), "seed")
_MAY_CHANGE = {"data_dir", "max_test_examples"}
"""Of what is learnt: where the data lies, and what the server measures on."""
_LEARNT = {
    FIELDS[item.name].alias or item.name for item in fields(TaskSettings) if item.name not in _MAY_CHANGE
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SettingsSince:
    """The settings that decide what the rounds from `first_round` on mean.

    learnt: by the names that a person types, an own app's included. training: by field. prepared: by method, its
    options that are fixed.
    """

    first_round: int
    learnt: Mapping[str, Any]
    training: Mapping[str, Any]
    prepared: Mapping[str, Mapping[str, Any]]

    @classmethod
    def of(cls, settings: RunSettings, written: Mapping[str, Any], first_round: int) -> "SettingsSince":
        """Return those of a run; `written` are its settings as a state directory keeps them."""
        known = {field.alias or name for name, field in FIELDS.items()}
        return cls(
            first_round=first_round,
            learnt={name: value for name, value in written.items() if name in _LEARNT or name not in known},
            training={name: getattr(settings, name) for name in _TRAINING},
            prepared={
                name: {key: str(getattr(one, key)) for key in sorted(one.fixed)}
                for name, one in settings.preparations().items()
            },
        )


def going_on(
    earlier: tuple[SettingsSince, ...], now: SettingsSince, prepared_since: Mapping[str, int]
) -> tuple[SettingsSince, ...]:
    """Return the settings of all rounds, where a run goes on with those of `now`.

    prepared_since: the methods of which something is kept.

    Raises:
        ConfigurationError: a setting was changed that what is kept depends on; lists all of them.
    """
    before = [one for one in earlier if one.first_round < now.first_round]
    if before and (kept_by := sorted(set(prepared_since) & set(now.prepared))):
        wrong = _changed(before[-1], now, kept_by)
        if wrong:
            raise ConfigurationError(wrong)
    if before and replace(now, first_round=before[-1].first_round) == before[-1]:
        return tuple(before)
    return (*before, now)


def schedule_of(
    settings: RunSettings, earlier: tuple[SettingsSince, ...]
) -> Callable[[int], TrainingSettings]:
    """Return how clients train in the round of a number, those of earlier settings by these."""

    def schedule(number: int) -> TrainingSettings:
        then = [one.training for one in earlier if one.first_round <= number]
        return (replace(settings, **then[-1]) if then else settings).training(number)

    return schedule


def _changed(before: SettingsSince, now: SettingsSince, kept_by: list[str]) -> list[str]:
    """Return a sentence for each setting that was changed and may not be."""
    pairs = {
        name: (before.learnt.get(name), now.learnt.get(name))
        for name in sorted({*before.learnt, *now.learnt})
    }
    for method in kept_by:
        options = before.prepared.get(method, {})
        pairs |= {
            f"prepare: {method}: {key}": (options.get(key, value), value)
            for key, value in now.prepared[method].items()
        }
    methods = ", ".join(kept_by)
    return [
        f"{name}: the rounds so far were trained with {old!r}, this run has {new!r}, and so {methods} cannot use what "
        f"is kept of those rounds. Set {old!r} again, take {methods} out of prepare (what is kept is erased), or name "
        "another state-dir."
        for name, (old, new) in pairs.items()
        if old != new
    ]
