"""How a method's exchanges travel: each by Flower messages, or all over one session (docs/sessions.md)."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext

from server.federation.clients import Clients
from strategies.exchange import Exchange
from strategies.messages import model_record
from strategies.sessions.server_half import Session
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.errors import MethodFailed
from unlearning.methods.method import Method
from unlearning.parameters import Vector

# How many clients' reasons a failure lists; a federation may have thousands of clients.
_SHOWN = 5


def session_for(clients: Clients, method: Method) -> AbstractContextManager[Session | None]:
    """Return a session for the rest of the method's exchanges; None where each goes by Flower messages.

    Raises (on entering):
        SessionError: the session's address cannot be used.
    """
    if clients.endpoint is None or not method.info.is_iterative:
        return nullcontext()
    return Session(clients.grid, clients.endpoint)


def carry_out(
    clients: Clients,
    session: Session | None,
    strategy: UnlearningStrategy,
    number: int,
    model: Vector,
) -> Exchange:
    """Carry out the strategy's next exchange, as round `number`; afterwards its state is the next one.

    Raises:
        MethodFailed: the replies do not suffice; the message ends with why clients gave no usable one.
    """
    if session is None:
        done = clients.exchange(strategy.unlearn_messages(number, model_record(model), clients.grid))
        _check_final(done, strategy)
        with _explain_failure(done, strategy):
            strategy.aggregate_train(number, done.messages.values())
        return done
    instructions = strategy.instructions(number, model_record(model), clients.grid)
    answers = session.exchange(
        number,
        strategy.method.info.name,
        instructions,
        lambda values: strategy.invitations(number, values),
    )
    _check_final(answers.exchange, strategy)
    with _explain_failure(answers.exchange, strategy):
        strategy.aggregate(answers.replies)
    if not strategy.is_finished:
        return answers.exchange
    accounts = session.close()
    clients.take_site_requests(accounts)
    return answers.exchange.plus(accounts)


def _check_final(done: Exchange, strategy: UnlearningStrategy) -> None:
    """Give up where one who must forget says that it never can; another's word only leaves it out."""
    final = {
        client: str(failure)
        for client, failure in done.failures.items()
        if failure.is_final and strategy.concerns(client)
    }
    if final:
        raise MethodFailed(f"A client cannot do its part: {_list_reasons(final)}.", retryable=False)


@contextmanager
def _explain_failure(done: Exchange, strategy: UnlearningStrategy) -> Iterator[None]:
    """Let a failure of the method say why clients that were asked gave no usable answer, if any."""
    try:
        yield
    except MethodFailed as exc:
        reasons = {client: str(failure) for client, failure in done.failures.items()}
        reasons |= strategy.outcome.refused
        if not reasons:
            raise
        raise MethodFailed(f"{exc} Not usable: {_list_reasons(reasons)}.", retryable=exc.retryable) from exc


def _list_reasons(reasons: Mapping[str, str]) -> str:
    shown = [f"client {client}: {reasons[client].rstrip('.')}" for client in sorted(reasons)[:_SHOWN]]
    more = len(reasons) - len(shown)
    return "; ".join(shown) + (f"; and {more} more" if more else "")
