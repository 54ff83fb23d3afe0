"""What to do about a failed request, by the code of its cause; the one place for it.

The code is that of the error that ended it (`unlearning.errors`), and is kept in the request's result.
"""

from collections.abc import Iterable, Mapping

from unlearning.requests import DeletionRequest, Status

CODE = "code"
"""The key in a failed request's result."""
_RUINED = (
    "This attempt would have ruined the model, so it was thrown away. Nothing has changed. Try it with the recommended "
    "method: flower-unlearn retry {id} --method NAME (`plan` names it)."
)
_SILENT = (
    "A computer that is needed did not answer. `flower-unlearn clients` says which are online, and since when others "
    "are not. Once it is back: flower-unlearn retry {id}. A method that does not need it: --method NAME (`plan` names "
    "those that need not wait)."
)
_CANNOT = (
    "This method cannot serve the request in this federation. Try it with another: flower-unlearn retry {id} --method "
    "NAME (`plan` names the recommended one)."
)
_NOT_KEPT = (
    "What this method keeps from training rounds is not there. Once the clients that the reason names have trained in "
    "a round: flower-unlearn retry {id}; or try it with another method: --method NAME (`plan` names the recommended "
    "one)."
)
_NO_RESULT = (
    "The method came to no usable result on this data. Nothing has changed. Try it with another method or other "
    "parameters: flower-unlearn retry {id} --method NAME --parameter NAME=VALUE (`plan` names the recommended one)."
)
_PARAMETER = (
    "A parameter does not fit this federation; the reason says which, and what does. Try it with another value: "
    "flower-unlearn retry {id} --method NAME --parameter NAME=VALUE."
)
_BUDGET = (
    "The federation's privacy budget does not allow this deletion with noise. Try it with a method without noise: "
    "flower-unlearn retry {id} --method NAME; or ask the operator for a larger budget."
)
_UNKNOWN = (
    "Compare your list with the client's: of samples that it never had there is nothing to forget. Correct the list "
    "and file it again; another method does not help."
)


def _each(codes: str, advice: str) -> Iterable[tuple[str, str]]:
    return ((code, advice) for code in codes.split())


ADVICE: Mapping[str, str] = {
    **dict(_each("not-finite unusable-model norm-exploded", _RUINED)),
    "score-lost": (
        "The model would have become worse than max-score-loss allows; the reason says by how much. Nothing has "
        "changed. Try it with the recommended method: flower-unlearn retry {id} --method NAME; or accept the loss with "
        "--accept-score-loss POINTS."
    ),
    **dict(_each("no-answer no-client-online unusable-answers session", _SILENT)),
    "no-secure-sum": (
        "Fewer clients than secure aggregation needs were left; the reason says how many. Once more are online: "
        "flower-unlearn retry {id}. If no more will come, start the run again with a smaller min-cohort, which hides a "
        "client among fewer."
    ),
    "client-cannot": (
        "The computer of the client that the reason names reports that it cannot do this. Ask its operator; where the "
        "reason is the method, try it with another: flower-unlearn retry {id} --method NAME."
    ),
    "unknown-samples": _UNKNOWN,
    "removed-samples": (
        "The site has removed the data, and the model may still know it. Try it with a method that works without the "
        "data: flower-unlearn retry {id} --method NAME (`plan` names the recommended one; retrain is one)."
    ),
    "moved-samples": (
        "Nothing was begun. The client's owner gives every sample an id, or sees to it that each one stands where it "
        "stood, as the reason says; then file it again, by those ids."
    ),
    "nothing-to-forget": (
        "No client that was asked has an example of it, or has one left after earlier deletions. Of samples: compare "
        "your list with the client's. To leave a whole client or a class out from now on all the same: flower-unlearn "
        "retry {id} --method natural; --method retrain where a restored model may still have the data."
    ),
    **dict(_each("budget-spent noise-uncounted", _BUDGET)),
    **dict(
        _each("not-prepared prepared-too-late not-prepared-for-target other-preparation no-vector", _CANNOT)
    ),
    **dict(_each("no-classes no-classification no-classifier-head own-training no-client-stays", _CANNOT)),
    **dict(_each("not-private not-covered coupled-loss own-aggregation without-noise not-linear", _CANNOT)),
    **dict(_each("other-granularity one-at-a-time asks-nothing", _CANNOT)),
    **dict(
        _each(
            "local-layers needs-single-answers rounded-rounds has-statistics keeps-optimizer client-left",
            _CANNOT,
        )
    ),
    **dict(_each("nothing-kept vectors-unreadable", _NOT_KEPT)),
    **dict(_each("no-solution no-direction diverged no-sum", _NO_RESULT)),
    **dict(_each("unfit-parameter noise-set-in-prepare delta-too-large no-radius", _PARAMETER)),
}
_OTHERWISE = {
    True: "Trying again can help: flower-unlearn retry {id}.",
    False: "The same again would fail again. Try it with another method: flower-unlearn retry {id} --method NAME.",
}


_REOPENED = (
    "Its data stays excluded. Look whether others hold copies of it (the same records at another client, or an owner "
    "that came back under another id): file requests for those. Then try a stronger method: flower-unlearn retry {id} "
    "--method NAME (`plan` names the recommended one). A site does not use excluded data, so take one that needs none "
    "of it, such as retrain. Where what came back is others' own knowledge: flower-unlearn refuse {id} --reason TEXT."
)


def advice_for(request: DeletionRequest) -> str:
    """Return what to do about a failed or reopened request; empty for every other."""
    if request.status is Status.REOPENED:
        return _REOPENED.format(id=request.id)
    if request.status is not Status.FAILED:
        return ""
    code = str(request.result.get(CODE, ""))
    return ADVICE.get(code, _OTHERWISE[request.retryable]).format(id=request.id)
