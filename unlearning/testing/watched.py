"""Methods that do as another one does and look at what it is given and gives, or change one thing about it."""

import copy
import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray

from unlearning.methods.method import ClientSite, Instruction, Method, Problem, Reply, UnlearningState
from unlearning.parameters import Vector
from unlearning.plain import to_plain
from unlearning.requests import NOTHING
from unlearning.tasks.task import forgotten_mask
from unlearning.testing.deletions import Deletion
from unlearning.testing.equality import are_equal


class Wrapped(Method[Any, Any]):
    """A method as another one is, but for what a subclass changes."""

    def __init__(self, inner: Method) -> None:
        self.inner = inner
        self.info = inner.info
        self.Parameters = inner.Parameters

    def begin(self, problem: Problem, parameters: Vector) -> UnlearningState:
        """Do as the other."""
        return self.inner.begin(problem, parameters)

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """Do as the other."""
        return self.inner.configure(problem, state)

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Do as the other."""
        return self.inner.client_step(instruction, site)

    def aggregate(
        self, problem: Problem, state: UnlearningState, replies: Mapping[str, Reply]
    ) -> UnlearningState:
        """Do as the other."""
        return self.inner.aggregate(problem, state, replies)


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


class Asking(Wrapped):
    """A method whose instructions are looked at."""

    seen = ""

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """Look at whom it asks what."""
        instructions = super().configure(problem, state)
        if not instructions:
            self.seen = self.seen or "it is not finished and asks nobody"
        for client, instruction in instructions.items():
            if client not in {*problem.targets, *problem.retained}:
                self.seen = self.seen or f"it asks {client}, who is neither target nor retained"
            elif instruction.forget not in (NOTHING, problem.targets.get(client, NOTHING)):
                self.seen = self.seen or f"it tells {client} to forget {instruction.forget}"
        return instructions


class WithMemo(Wrapped):
    """A method whose clients keep their memos from exchange to exchange."""

    def __init__(self, inner: Method) -> None:
        super().__init__(inner)
        self._memos: dict[tuple[str, ...], dict[str, Any]] = {}

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Give it the memo of the same examples."""
        examples = (*site.forget.ids.tolist(), "|", *site.retain.ids.tolist())
        return super().client_step(instruction, replace(site, memo=self._memos.setdefault(examples, {})))


class Looking(Wrapped):
    """A method whose states and messages are searched for forgotten examples."""

    def __init__(self, deletion: Deletion) -> None:
        super().__init__(deletion.method)
        self.seen = ""
        self._ids: set[str] = set()
        self._inputs: set[tuple[float, ...]] = set()
        for client, examples in deletion.sites.items():
            if deletion.target.client_id in (None, client):
                gone = examples.select(forgotten_mask(examples, deletion.target.forget))
                self._ids |= set(gone.ids.tolist())
                self._inputs |= {tuple(row) for row in gone.inputs.double().tolist()}

    def at_state(self, state: UnlearningState) -> UnlearningState:
        """Search a state."""
        self.look("the state", {"parameters": state.parameters, **state.arrays}, state.values)
        return state

    def configure(self, problem: Problem, state: UnlearningState) -> Mapping[str, Instruction]:
        """Search what is sent."""
        instructions = super().configure(problem, state)
        for client, one in instructions.items():
            self.look(f"the instruction to {client}", {"model": one.model, **one.arrays}, one.values)
        return instructions

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Search what is answered."""
        reply = super().client_step(instruction, site)
        self.look("an answer", {"vector": reply.vector, **reply.arrays}, reply.values)
        return reply

    def look(self, where: str, arrays: Mapping[str, Any], values: Mapping[str, Any]) -> None:
        """Search arrays for inputs, and texts for ids."""
        text = json.dumps(to_plain(dict(values)), default=str) + "".join(
            str(array) for array in arrays.values() if np.asarray(array).dtype.kind in "US"
        )
        named = sorted(one for one in self._ids if one in text)
        if named and not self.seen:
            self.seen = f"{where} names {named[0]}"
        for name, array in arrays.items():
            if self._has_inputs(np.asarray(array)) and not self.seen:
                self.seen = f"{where} holds an example's inputs in {name}"

    def _has_inputs(self, array: NDArray[Any]) -> bool:
        if array.dtype.kind != "f" or array.size < 2:
            return False
        rows = sliding_window_view(array.astype(np.float64).ravel(), 2)
        return any(tuple(row) in self._inputs for row in rows.tolist())


class Short(Wrapped):
    """A method whose clients answer with half of their vectors."""

    has_cut = False

    def client_step(self, instruction: Instruction, site: ClientSite) -> Reply:
        """Cut the vector."""
        reply = super().client_step(instruction, site)
        self.has_cut = self.has_cut or reply.vector.size > 1
        return replace(reply, vector=reply.vector[: max(1, reply.vector.size // 2)])
