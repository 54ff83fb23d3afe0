"""Who calls, and what each role may call.

Identity comes from the caller's certificate alone: its common name (CN) is the name, its organisational units (OU)
the roles. Over HTTP a token takes its place (server/service/tokens.py). On loopback without mutual TLS there is no
certificate; every local user is then operator and officer under the name that they give.

| role     | may                                                                              |
|----------|----------------------------------------------------------------------------------|
| operator | read everything, file, cancel and retry                                          |
| officer  | read everything, file, cancel, and decide: accept, refuse, hold, extend, ...     |
| auditor  | read everything                                                                  |
| client   | file, follow and cancel requests about the client whose id is its common name    |
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import grpc
from cryptography import x509
from cryptography.x509.oid import NameOID

from server.ledger import SITE, Ledger, RoundRecord
from server.ledger.records import no_such_request
from server.service.calls import CALLS, Role
from server.service.statuses import AccessDenied, NotAuthenticated
from unlearning.errors import InvalidRequest
from unlearning.requests import DeletionRequest, Target, is_id

# What a caller without a certificate is called in refusals and limits, whatever name it gives itself.
LOCAL = "local"


@dataclass(frozen=True, slots=True)
class Caller:
    """The caller: a name, a role (None where the certificate carries none), and whether a certificate says so.

    credential: what proves it, `certificate` or `token`. also: further roles; `role` is the one that is written down.
    may_erase_clients: a right that a token can lack. is_sandbox: what it asks for changes nothing.
    """

    name: str
    role: Role | None
    certified: bool = True
    problem: str = ""
    credential: str = "certificate"
    also: frozenset[Role] = frozenset()
    may_erase_clients: bool = True
    is_sandbox: bool = False

    @property
    def roles(self) -> tuple[Role, ...]:
        """All roles of the caller."""
        return tuple(role for role in Role if role is self.role or role in self.also)

    def may(self, call: str) -> bool:
        """Return whether one of the roles may make a call."""
        return call in CALLS and not CALLS[call].roles.isdisjoint(self.roles)

    @property
    def is_client(self) -> bool:
        """Whether the caller speaks for one client only."""
        return self.role is Role.CLIENT

    @property
    def is_operator(self) -> bool:
        """Whether the caller runs the federation."""
        return Role.OPERATOR in self.roles

    def submitter_name(self, declared: str) -> str:
        """Return the name under which the caller files: that of the credential, or without one the declared name.

        Raises:
            InvalidRequest: the name is malformed.
        """
        name = self.name if self.certified else declared or "unnamed"
        if not is_id(name):
            raise InvalidRequest(f"Malformed name of the caller: {name[:40]!r}.", code="caller-name")
        return name


def caller_of(context: "grpc.aio.ServicerContext[bytes, bytes]", *, certificates_required: bool) -> Caller:
    """Return who calls; never raises: what is wrong with a certificate is the caller's `problem`."""
    certificates = list(context.auth_context().get("x509_pem_cert", ()))
    if certificates:
        return caller_of_certificate(certificates[0])
    if certificates_required:
        return Caller("", None, problem="The call came without a certificate.")
    return local_caller(LOCAL)


def local_caller(name: str) -> Caller:
    """Return the caller on this machine where there are no certificates."""
    return Caller(name, Role.OPERATOR, certified=False, also=frozenset({Role.OFFICER}))


@lru_cache(maxsize=1024)
def caller_of_certificate(pem: bytes) -> Caller:
    """Return who a certificate (PEM) says that it is; a certificate that says it badly gives the `problem`."""
    try:
        subject = x509.load_pem_x509_certificate(pem).subject
        names = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.COMMON_NAME)]
        units = [str(item.value) for item in subject.get_attributes_for_oid(NameOID.ORGANIZATIONAL_UNIT_NAME)]
    except ValueError:
        return Caller("", None, problem="The certificate's subject cannot be read.")
    if len(names) != 1 or not is_id(names[0]):
        return Caller(
            "", None, problem=f"The certificate must have one well-formed common name, it has {len(names)}."
        )
    roles = [role for role in Role if role in units]
    is_mixed = Role.CLIENT in roles and len(roles) > 1
    if not roles or len(roles) < len(units) or is_mixed:
        got = ", ".join(repr(unit[:40]) for unit in units[:3]) or "none"
        known = ", ".join(Role)
        return Caller(
            names[0],
            None,
            problem=f"The certificate of {names[0]!r} carries no role: "
            f"its organisational units (OU) must be among {known}, client alone; got {got}.",
        )
    return Caller(names[0], roles[0], also=frozenset(roles[1:]))


def authorise(caller: Caller, call: str) -> None:
    """Check that the caller's role may make this call.

    Raises:
        NotAuthenticated: the caller has no role.
        AccessDenied: the role may not.
    """
    if caller.role is None:
        raise NotAuthenticated(
            f"{caller.problem} Ask the federation's operator for a {caller.credential} with a role."
        )
    if not caller.may(call):
        allowed = CALLS[call].roles if call in CALLS else frozenset()
        who = " or ".join(
            f"an {role}" if role[0] in "ao" else f"a {role}" for role in Role if role in allowed
        )
        raise AccessDenied(
            f"{call} is for {who or 'no role'}; {caller.name!r} is {' and '.join(caller.roles)} by its "
            f"{caller.credential}. Ask a person with that role.",
            code="role",
            call=call,
        )


def check_may_file(caller: Caller, target: Target) -> None:
    """Refuse a client's request about any client but itself.

    Raises:
        AccessDenied: the target is a class, or another client.
    """
    if caller.is_client and target.client_id != caller.name:
        raise AccessDenied(
            f"A client may ask only for its own data: {caller.name!r} asked to forget {target.describe()}. "
            "Ask the federation's operator.",
            code="data-of-others",
        )


def check_may_see(caller: Caller, ledger: Ledger, request_id: str) -> None:
    """Refuse to show a client a request about another client: others do not exist for it.

    Nothing is read of a request but which client it is about, so that the answer takes as long as to an unknown id.

    Raises:
        RequestNotFound: there is none, or as if there were none; the cause of the latter is what is recorded.
    """
    if caller.is_client and ledger.requests.client_of(request_id) != caller.name:
        hidden = AccessDenied(f"{caller.name!r} asked for {request_id}, which is not about itself.")
        raise no_such_request(request_id) from hidden


def figures_of(record: RoundRecord, own_requests: frozenset[str]) -> RoundRecord:
    """Return a round as a client may see it: figures of the whole federation, no names of others."""
    figures = {name: value for name, value in record.metrics.items() if isinstance(value, int | float)}
    served = tuple(item for item in record.request_ids if item in own_requests)
    return replace(record, request_ids=served, metrics=figures)


def may_cancel(caller: Caller, request: DeletionRequest) -> bool:
    """Tell whether a caller may withdraw a request: a client only what it filed itself, here or at its own site.

    A request without a recorded role could be this client's or that of an operator of the same name, so only an
    operator may withdraw it.
    """
    own = {(caller.name, str(Role.CLIENT)), (f"site of client {caller.name}", SITE)}
    return not caller.is_client or (request.submitted_by, request.submitted_role) in own


def check_may_cancel(caller: Caller, request: DeletionRequest) -> None:
    """Refuse that a client withdraws what another caller filed.

    Raises:
        AccessDenied: another caller filed it.
    """
    if not may_cancel(caller, request):
        role = request.submitted_role
        as_what = f" as {role}" if role else " without a recorded role"
        raise AccessDenied(
            f"Request {request.id} was filed by {request.submitted_by!r}{as_what}, not by {caller.name!r} as "
            f"{Role.CLIENT}. Ask the federation's operator to cancel it.",
            code="filed-by-another",
            submitted_role=role,
        )
