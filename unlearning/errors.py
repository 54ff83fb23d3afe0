"""Every error that this project raises on purpose.

Those with a file next to them are defined there, the others here.

FlowerUnlearningError
├── ConfigurationError         a setting is wrong; lists every wrong setting at once
├── VersionMismatch            two programs, or a program and a file, are of versions that do not fit together
├── DataError                  a data set, a model or an example id is not what was promised
├── AppError                   a function or data set of the user's own app raised, or gave something else than it must
├── UpdateRefused              a client's update may not enter the model
├── TrainingFailed             every client failed in a training round that counts
├── MethodFailed               an unlearning method cannot go on (retryable or not)
├── ModelRefused               a model may not become the federation's
├── ContractBroken             a method breaks a rule that every method must keep to (unlearning.testing)
├── NumericalError             a product, a solver or its operator cannot do what it promises
├── CheckpointError            a checkpoint cannot be read, or is not what its name says
├── CertificateError           a certificate of deletion, or what was kept for its replay, cannot be read
├── BackupError                a backup cannot be made, is damaged, or restoring it would undo deletions
├── DeploymentError            a process of the federation, or a command to it, did not do what was asked
├── StoreFull                  what a method keeps from round to round has reached its bound
├── Fenced                     a newer server process has taken over; this one must stop
├── LedgerUnavailable          the ledger cannot be reached, or refuses a statement (server/ledger/records.py)
├── ServiceUnavailable         the deletion service does not answer, or could not (server/service/statuses.py)
├── SecureAggregationError     a round of secure aggregation is refused or given up; nothing of it is revealed
├── SessionError               a session between the server and a client cannot be opened, or broke off
│   └── PayloadRefused         a neighbour refuses a payload (client/peer/grpc_transport.py)
└── RequestError               a deletion request is refused
    ├── InvalidRequest         malformed: no target, empty sample list, bad parameter
    ├── UnknownClient          no such client in this federation
    ├── UnknownMethod          no such method
    ├── UnsupportedRequest     the method cannot serve this kind of request
    ├── AlreadyForgotten       the target was forgotten before
    ├── ConflictingRequest     a request for the same target is open, or the key was used for another one
    ├── RequestNotFound        no such request
    ├── IllegalMove            the request's state does not allow this
    ├── LimitExceeded          a caller asks for more than its share (server/ledger/records.py)
    ├── NotAuthenticated       the caller's certificate names no person and role (server/service/statuses.py)
    └── AccessDenied           the caller's role does not allow this (server/service/statuses.py)
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar


class FlowerUnlearningError(Exception):
    """The root of this project's errors; its message says what happened and what to do.

    `code` is a short, stable name of the cause ("too-many-samples"), where the class does not say it, and `fields`
    are the values that the message contains. Programs and tests read these; the wording of a message may change.
    `exit_code` is that of a command which it ends: 2 for a wrong use of it, 3 for a refusal, 4 where a service cannot
    be reached, else 1.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str = "", *, code: str = "", **fields: object) -> None:
        self.code = code
        self.fields = fields
        super().__init__(message)

    def __reduce__(self) -> tuple[Any, ...]:
        """Let it travel to another process, whatever the arguments of its class."""
        return _remade, (type(self), self.args), self.__dict__


def _remade(kind: type[BaseException], args: tuple[Any, ...]) -> BaseException:
    return kind.__new__(kind, *args)


class ConfigurationError(FlowerUnlearningError):
    """One or more settings are wrong.

    `problems` holds one sentence a wrong setting.
    """

    exit_code = 2

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        count = len(self.problems)
        head = "1 setting is wrong" if count == 1 else f"{count} settings are wrong"
        super().__init__(f"{head}:\n" + "\n".join(f"  - {problem}" for problem in self.problems))


def describe_wrong_value(error: Mapping[str, Any], name: str = "") -> str:
    """Say in a sentence what pydantic has found wrong with a value; `name`: of the setting, else pydantic's."""
    name = name or ".".join(str(part) for part in error["loc"])
    return f"{name}: {error['msg']}, got {error['input']!r}."


class VersionMismatch(FlowerUnlearningError):
    """Two programs, or a program and what another one wrote, are of versions that do not fit together."""

    exit_code = 3


class DataError(FlowerUnlearningError):
    """A data set, a model or an example id is not what was promised."""


class AppError(FlowerUnlearningError):
    """A function or data set of the user's own app raised, or gave something else than it must."""


class UpdateRefused(FlowerUnlearningError):
    """A client's update may not enter the model."""


class MethodFailed(FlowerUnlearningError):
    """An unlearning method cannot go on; `retryable` says whether trying again can help."""

    def __init__(self, message: str, *, retryable: bool, code: str = "", **fields: object) -> None:
        self.retryable = retryable
        super().__init__(message, code=code, **fields)


class TrainingFailed(FlowerUnlearningError):
    """A training round brought nothing, where a federation is of no use without it."""


class ContractBroken(FlowerUnlearningError):
    """A method breaks rules that every method must keep to; the message lists each of them, and what to do."""


class ModelRefused(FlowerUnlearningError):
    """A model may not become the federation's; it stays as it was."""


class NumericalError(FlowerUnlearningError):
    """A gradient, a curvature product or a solver's operator cannot be what it promises to be."""


class CheckpointError(FlowerUnlearningError):
    """A checkpoint cannot be read, or is not what its name says."""


class StoreFull(FlowerUnlearningError):
    """What a method keeps from round to round has reached its bound."""


class CertificateError(FlowerUnlearningError):
    """A certificate of deletion cannot be read."""


class BackupError(FlowerUnlearningError):
    """A backup cannot be made, is damaged, or restoring it would undo deletions."""


class DeploymentError(FlowerUnlearningError):
    """A process of the federation, or a command to it, did not do what was asked."""


class SessionError(FlowerUnlearningError):
    """A session between the server and a client cannot be opened, or broke off."""


class SecureAggregationError(FlowerUnlearningError):
    """A round of secure aggregation is refused by a client, or abandoned by the server; nothing of it is revealed."""


class Fenced(FlowerUnlearningError):
    """A newer server process has taken over; this one must stop."""


class RequestError(FlowerUnlearningError):
    """A deletion request is refused."""

    exit_code = 3


class InvalidRequest(RequestError):
    """The request is malformed."""

    exit_code = 2


class UnknownClient(RequestError):
    """The federation has no such client."""


class UnknownMethod(RequestError):
    """There is no such unlearning method."""


class UnsupportedRequest(RequestError):
    """The method cannot serve this kind of request."""


class AlreadyForgotten(RequestError):
    """The target was forgotten before."""


class ConflictingRequest(RequestError):
    """A request for the same target is open, or the idempotency key belongs to another request."""


class RequestNotFound(RequestError):
    """There is no such deletion request."""


class IllegalMove(RequestError):
    """The request's state does not allow this."""
