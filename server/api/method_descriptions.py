"""What the deletion service says of methods, and the command line of those installed where no service answers."""

from dataclasses import asdict

from server.api.convert import MethodDescription
from server.requests.plan_data import Measured
from unlearning.methods.method import Method
from unlearning.methods.registry import METHODS


def describe(method: Method, past: Measured | None = None) -> MethodDescription:
    """Return what a method states of itself, and the medians of `past` deletions by it."""
    info = method.info
    return MethodDescription(
        name=info.name,
        title=info.title,
        source=info.source,
        granularities=tuple(sorted(info.granularities)),
        several_at_once=info.several_at_once,
        needs=tuple(sorted(info.needs)),
        remark=info.remark,
        parameters=method.Parameters.model_json_schema().get("properties", {}),
        keeps=info.preparation.keeps if info.preparation is not None else "",
        measured=asdict(past) if past is not None else {},
    )


def installed() -> list[MethodDescription]:
    """Return the methods that are installed on this machine."""
    return [describe(method) for method in METHODS.values()]
