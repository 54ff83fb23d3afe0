"""Functions that an app brings along, called so that what goes wrong in them is one sentence that names them.

What comes from this project's own modules is taken as it is.
"""

import traceback
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any, TypeVar

from torch import Tensor

from unlearning.errors import AppError, DataError, FlowerUnlearningError
from unlearning.tasks.checks import check_examples
from unlearning.tasks.task import Examples, Site, Task

_Returned = TypeVar("_Returned")


def name_of(function: Callable[..., Any], separator: str = ".") -> str:
    """Return the name of a function by which its author knows it: package.module.function."""
    function = getattr(function, "func", function)  # of a functools.partial
    module = getattr(function, "__module__", type(function).__module__)
    return f"{module}{separator}{getattr(function, '__qualname__', type(function).__qualname__)}"


def is_ours(function: Callable[..., Any]) -> bool:
    """Return whether a function is this project's own."""
    return name_of(function).startswith(("unlearning.", "strategies."))


def call_own(function: Callable[..., Any], wanted: type[_Returned], *arguments: Any) -> _Returned:
    """Return what an app's function makes of `arguments`.

    Raises:
        AppError: it raised something, or returned anything but a `wanted`.
    """
    try:
        returned = function(*arguments)
    except FlowerUnlearningError:
        raise
    except Exception as exc:
        raise AppError(
            f"{name_of(function)} raised {type(exc).__name__}: {exc} ({_place(function, exc)})."
        ) from exc
    if not isinstance(returned, wanted):
        raise AppError(f"{name_of(function)} must return {_with_article(wanted)}, got {_shown(returned)}.")
    return returned


def make_own_task(make_task: Callable[..., Any], settings: Any) -> Task:
    """Return the task that an app makes, whose functions from now on say themselves what is wrong with what they give.

    Raises:
        AppError: `make_task` raised, or returned no task.
    """
    task = call_own(make_task, Task, settings)
    loss = task.loss if is_ours(task.loss) else _guarded_loss(task.loss)
    measures = task.per_example if is_ours(task.per_example) else _guarded_measures(task.per_example)
    return replace(task, loss=loss, per_example=measures)


def load_own_site(load_site: Callable[..., Any], settings: Any, node_config: Any) -> Site:
    """Return the data that an app reads at a client.

    Raises:
        AppError: `load_site` raised, returned no site, or one with examples that `check_examples` refuses.
    """
    site = call_own(load_site, Site, settings, node_config)
    for part, examples in (("train", site.train), ("test", site.test)):
        if not isinstance(examples, Examples):
            raise AppError(
                f"{name_of(load_site)} must return a Site of Examples, got {_shown(examples)} as its {part}."
            )
        if not is_ours(load_site):
            try:
                check_examples(examples, f"{name_of(load_site)} ({part})")
            except DataError as exc:
                raise AppError(str(exc), code=exc.code) from exc
    return site


def load_own_test(load_test: Callable[..., Any], settings: Any) -> Examples | None:
    """Return the test examples that an app gives the server, or None.

    Raises:
        AppError: `load_test` raised, or returned something else.
    """
    found = call_own(load_test, object, settings)
    if found is None or isinstance(found, Examples):
        return found
    raise AppError(f"{name_of(load_test)} must return Examples or None, got {_shown(found)}.")


def _guarded_loss(loss: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Tensor]:
    @wraps(loss, updated=())
    def mean_loss(outputs: Tensor, targets: Tensor) -> Tensor:
        value = loss(outputs, targets)
        if not isinstance(value, Tensor) or value.ndim or not value.is_floating_point():
            raise AppError(
                f"The task's loss {name_of(loss)} must return one floating-point number, the mean over the batch, as "
                f"a tensor of shape (), got {_shown(value)}."
            )
        return value

    return mean_loss


def _guarded_measures(per_example: Callable[[Tensor, Tensor], Any]) -> Callable[[Tensor, Tensor], Any]:
    @wraps(per_example, updated=())
    def measures(outputs: Tensor, targets: Tensor) -> Any:
        found = per_example(outputs, targets)
        shape = (len(targets),)
        columns = found if isinstance(found, tuple) else (found,)
        if len(columns) != 3 or any(not isinstance(one, Tensor) or one.shape != shape for one in columns):
            shown = ", ".join(map(_shown, columns))
            raise AppError(
                f"The task's per_example {name_of(per_example)} must return loss, score and confidence of each of "
                f"{len(targets)} example(s), three tensors of shape {shape}, got {shown}."
            )
        return found

    return measures


def _place(function: Callable[..., Any], error: Exception) -> str:
    """Return file and line of what raised, in the function's own file if it was there."""
    code = getattr(getattr(function, "func", function), "__code__", None)
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if code is not None and frame.filename == code.co_filename]
    last = (own or frames)[-1]
    return f"{last.filename}, line {last.lineno}"


def _with_article(kind: type) -> str:
    return f"{'an' if kind.__name__[0] in 'AEIOU' else 'a'} {kind.__module__}.{kind.__name__}"


def _shown(value: object) -> str:
    if isinstance(value, Tensor):
        return f"a tensor of shape {tuple(value.shape)} and dtype {str(value.dtype).removeprefix('torch.')}"
    return f"{type(value).__name__} {value!r}"[:200] if value is not None else "None"
