"""Waiting for clients before a round, and saying which ones are waited for."""

import time
from collections.abc import Callable, Collection, Mapping
from logging import getLogger

from flwr.serverapp import Grid

from strategies.roster import Member, Roster
from strategies.round_plan import RoundPlan
from strategies.settings.run_config import RunSettings
from unlearning.runtime.growing_pause import GrowingPause

_log = getLogger(__name__)
_SAY_AGAIN = GrowingPause(first_s=10.0, longest_s=300.0)
_LOOK_S = 0.5
_SIMULATION_S = 5.0
"""How long after the last client came a simulation is waited for: it has all its clients at once."""


class ClientWait:
    """Waits, with a limit, for the clients expected at the start, later for the fewest allowed.

    A simulation starts the server before its nodes; without this the first round would lack most.
    """

    def __init__(self, settings: RunSettings) -> None:
        self._settings = settings
        self._has_begun = False

    def wait(self, grid: Grid, roster: Roster, plan: RoundPlan, tell: Callable[[str], None]) -> None:
        """Wait until enough clients may train, `wait-timeout-s` at most.

        tell: is given the sentence that says who is waited for, at each look, and "" at the end.
        """
        wanted, setting = self._wanted(plan)
        began = grown = time.monotonic()
        said, said_at, times, most = "", began, 0, 0
        while (count := len(here := self._present(online := roster.online(grid), roster, plan))) < wanted:
            now = time.monotonic()
            if count > most:
                most, grown = count, now
            left_s = self._settings.wait_timeout_s - (now - began)
            if _is_simulation(online) and now - grown >= _SIMULATION_S:
                _log.warning(
                    "The simulation has %d client(s), not %d (%s); going on.", count, wanted, setting
                )
                break
            if left_s <= 0:
                _log.warning("Going on with %d client(s), expected %d.", count, wanted)
                break
            names = f": {', '.join(here)}" if here else ""
            sentence = f"Waiting for {wanted} client(s) ({setting}), {count} here{names}."
            tell(sentence)
            if sentence != said or now - said_at >= _SAY_AGAIN.after(times):
                _log.info("%s At most %.0f s more (wait-timeout-s).", sentence, left_s)
                said, said_at, times = sentence, now, times + 1
            time.sleep(_LOOK_S)
        if said:
            tell("")
        self._has_begun = True

    def _present(self, online: Mapping[str, Member], roster: Roster, plan: RoundPlan) -> Collection[str]:
        """Return the clients that may train; before the first round, those that cannot take part as well."""
        eligible = plan.eligible(online)
        unable = {one for one in roster.unable if not plan.left_out(one).everything}
        return eligible if self._has_begun else sorted({*eligible, *unable})

    def _wanted(self, plan: RoundPlan) -> tuple[int, str]:
        """Return how many clients are waited for, and the setting that says so."""
        settings = self._settings
        fewest = (plan.fewest(settings.min_clients), "min-clients"), (settings.fewest_in_sum, "min-cohort")
        if self._has_begun:
            return max(fewest)
        gone = sum(1 for forget in plan.exclusions.clients.values() if forget.everything)
        expected, setting = (
            (settings.start_clients, "start-clients")
            if settings.start_clients
            else (settings.num_clients, "num-clients; start-clients is not set")
        )
        return max(*fewest, (expected - gone, setting))


def _is_simulation(online: Mapping[str, Member]) -> bool:
    """Return whether no client that is online sends heartbeats."""
    return bool(online) and all(member.heard_at is None for member in online.values())
