"""Methods that do as another one does and look at what it is given and gives, or change one thing about it."""

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from unlearning.methods.method import ClientSite, Instruction, Method, Problem, Reply, UnlearningState
from unlearning.testing.deletions import Wrapped
from unlearning.testing.equality import are_equal


class Restarted(Wrapped):
    """A method that is as new for each call, as in a process of its own."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self._fresh = copy.deepcopy(inner)

    def __getattribute__(self, name: str) -> Any:
        if name == "inner":
            return copy.deepcopy(self._fresh)
        return super().__getattribute__(name)


class Watched(Wrapped):
    """A method whose calls are looked at: `seen` says which argument it changed first."""

    seen = ""

    def _compare(self, call: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        changed = [name for name in before if not are_equal(before[name], after[name])]
        if changed and not self.seen:
            self.seen = f"{call}() changed its {changed[0]}"

    def begin(self, problem: Problem, parameters: Any) -> UnlearningState:
        """Look at `begin`."""
        given = {"problem": problem, "parameters": parameters}
        before = copy.deepcopy(given)
        state = super().begin(problem, parameters)
        self._compare("begin", before, given)
        return state

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """Look at `configure`."""
        given = {"problem": problem, "state": state}
        before = copy.deepcopy(given)
        instructions = super().configure(problem, state)
        self._compare("configure", before, given)
        return instructions

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Look at `client_step`; its site's store and memo are there to be written to."""
        given = {"instruction": instruction, "forget": site.forget, "retain": site.retain}
        before = copy.deepcopy(given)
        reply = super().client_step(instruction, site)
        self._compare("client_step", before, given)
        return reply

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """Look at `aggregate`."""
        given = {"problem": problem, "state": state, "replies": replies}
        before = copy.deepcopy(given)
        following = super().aggregate(problem, state, replies)
        self._compare("aggregate", before, given)
        return following


class WithMemo(Wrapped):
    """A method whose clients keep their memos from exchange to exchange."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self._memos: dict[tuple[str, ...], dict[str, Any]] = {}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Give it the memo of the same examples."""
        examples = (*site.forget.ids.tolist(), "|", *site.retain.ids.tolist())
        return super().client_step(instruction, replace(site, memo=self._memos.setdefault(examples, {})))


class Short(Wrapped):
    """A method whose clients answer with half of their vectors."""

    has_cut = False

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Cut the vector."""
        reply = super().client_step(instruction, site)
        self.has_cut = self.has_cut or reply.vector.size > 1
        return replace(reply, vector=reply.vector[: max(1, reply.vector.size // 2)])
