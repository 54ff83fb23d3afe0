"""The parts of an experiment file: federations, what they forget, by which methods, and a paper's rows."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from benchmarks.bench.columns import RETRAIN, own_retrain
from unlearning.methods.registry import preparations
from unlearning.requests import Granularity, Target


class Strict(BaseModel):
    """A part that has no other fields than these."""

    model_config = ConfigDict(frozen=True, extra="forbid", populate_by_name=True)


class Backdoor(Strict):
    """One client plants a backdoor: a patch in the corner that means a label (`verification.backdoor`)."""

    client: str
    label: int = Field(ge=0)
    share: float = Field(default=0.5, gt=0, le=1, description="of the client's examples")
    side: int = Field(default=4, ge=1, description="of the patch, pixels")


class GaussianNoise(Strict):
    """One client plants noise in some of its examples, and asks models for it (`verification.gaussian_poison`)."""

    client: str
    share: float = Field(default=0.15, gt=0, le=1, description="of the client's examples")
    deviation: float = Field(default=0.3, gt=0, description="in the inputs' own scale")


class Setting(Strict):
    """One federation of the comparison: run settings that differ from the experiment's."""

    name: str = ""
    run: Mapping[str, Any] = Field(default_factory=dict)
    backdoor: Backdoor | None = None
    noise: GaussianNoise | None = None


class Case(Strict):
    """What is forgotten: whole clients, some of each client's samples, or a class."""

    name: str = Field(min_length=1)
    clients: tuple[str, ...] = ()
    share: float = Field(default=1.0, gt=0, le=1, description="of each client's samples")
    mixed: float | None = Field(
        default=None,
        gt=0,
        le=1,
        description="of each client's samples, half of them the most vulnerable, half the least",
    )
    class_label: int | None = Field(default=None, alias="class", ge=0)

    @property
    def granularity(self) -> Granularity:
        """At which level it forgets."""
        if self.class_label is not None:
            return Granularity.CLASS
        return Granularity.CLIENT if self.share == 1 and self.mixed is None else Granularity.SAMPLE

    @property
    def decisive(self) -> dict[str, Any]:
        """What decides a row; `mixed` came later and does so only where it is used: finished rows keep their files."""
        values = self.model_dump(mode="json", exclude={"name"})
        return (
            values if self.mixed is not None else {name: values[name] for name in values if name != "mixed"}
        )

    def targets(self, sample_ids: Mapping[str, Sequence[str]]) -> list[Target]:
        """Return the deletion targets; where it forgets samples, the first share of each client's ids in order.

        sample_ids: by client, in a mixed case only those that were chosen.
        """
        if self.class_label is not None:
            return [Target(Granularity.CLASS, class_label=self.class_label)]
        if self.granularity is Granularity.CLIENT:
            return [Target(Granularity.CLIENT, client) for client in self.clients]
        return [
            Target(
                Granularity.SAMPLE,
                client,
                frozenset(sample_ids[client][: max(1, round(self.share * len(sample_ids[client])))]),
            )
            for client in self.clients
        ]


class Contender(Strict):
    """A method of the comparison, with what it needs prepared and its parameters."""

    method: str
    title: str = ""
    prepare: str = ""
    parameters: Mapping[str, Any] = Field(default_factory=dict)

    @property
    def name(self) -> str:
        """Its name in files and results."""
        return self.title or self.method

    @property
    def preparing(self) -> dict[str, str]:
        """What it needs prepared: the entry of the setting `prepare`, by method."""
        return {
            next(iter(preparations(entry))): entry.strip()
            for entry in self.prepare.split(";")
            if entry.strip()
        }

    @property
    def trains_alone(self) -> bool:
        """Whether its federation is trained in a way of its own, so that nobody shares its Original."""
        return any(item.replaces_training for item in preparations(self.prepare).values())

    @property
    def retraining(self) -> str:
        """The setting `prepare` of the retraining that it is compared with; empty for the ordinary one."""
        has_own = any(item.has_own_retraining for item in preparations(self.prepare).values())
        return self.prepare if has_own else ""

    @property
    def retrain(self) -> str:
        """The name of the row that it is compared with."""
        return own_retrain(self.name) if self.retraining else RETRAIN


class Published(Strict):
    """Rows of a paper, to stand below ours: by the contender's name, or `original` and `retrain`."""

    source: str
    columns: tuple[str, ...] = Field(min_length=1)
    rows: Mapping[str, tuple[float | str, ...]] = Field(min_length=1)
    settings: tuple[str, ...] = Field(default=(), description="only there; everywhere if not given")
    case: str | None = Field(default=None, description="only there; everywhere if not given")

    def belongs(self, setting: Setting, case: Case) -> bool:
        """Return whether it stands in the table of this setting and case."""
        return (not self.settings or setting.name in self.settings) and self.case in (None, case.name)
