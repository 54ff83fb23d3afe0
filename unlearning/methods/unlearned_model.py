"""What a method's model must be before anything uses it: a federation's gate asks for it, and the library."""

from unlearning.buffers import Change, buffers_in, check_variances
from unlearning.errors import ModelRefused, UpdateRefused
from unlearning.parameters import Vector, count_not_finite
from unlearning.tasks.task import Task

LARGEST_GROWTH = 100.0
"""How many times the norm before is allowed; no method has more than doubled it, 1e30 overflows in the next round."""


def check_unlearned(task: Task, parameters: Vector, before: Vector | None) -> None:
    """Refuse what a method has made of the model if it is not finite, its norm has exploded or a variance is negative.

    before: the model that it was made of; None where a noise's guarantee forbids to compare norms.

    Raises:
        ModelRefused: with both norms, or how many values are wrong.
    """
    if bad := count_not_finite(parameters):
        raise ModelRefused(
            f"The method gave a model of which {bad:,} of {parameters.size:,} values are not finite. The model is as "
            "it was.",
            code="not-finite",
        )
    try:
        check_variances(task, parameters)
    except UpdateRefused as exc:
        raise ModelRefused(
            f"The method gave a model that cannot be used: {exc} The model is as it was.",
            code="unusable-model",
        ) from exc
    if before is None:
        return
    zeros = buffers_in(task, parameters)
    norm, norm_before = (Change(vector, zeros=zeros).norm for vector in (parameters, before))
    if norm_before > 0 and norm > LARGEST_GROWTH * norm_before:
        raise ModelRefused(
            "This attempt would have ruined the model, so it was thrown away. Nothing has changed. (Norm "
            f"{norm:.4g}, before {norm_before:.4g}; at most {LARGEST_GROWTH:g} times is allowed.)",
            code="norm-exploded",
        )
