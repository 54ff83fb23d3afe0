"""A method's exchanges, and why one did not suffice."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from strategies.exchange import Exchange
from strategies.unlearning_strategy import UnlearningStrategy
from unlearning.errors import MethodFailed

# How many clients' reasons a failure lists; a federation may have thousands of clients.
_SHOWN = 5


def take_in(done: Exchange, strategy: UnlearningStrategy, number: int) -> None:
    """Take the answers to the strategy's messages of round `number`; afterwards its state is the next one.

    Raises:
        MethodFailed: the replies do not suffice; the message ends with why clients gave no usable one.
    """
    _check_final(done, strategy)
    with _explain_failure(done, strategy):
        strategy.aggregate_train(number, done.messages.values())


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
