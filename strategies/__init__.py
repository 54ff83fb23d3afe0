"""Flower strategies that can forget, and what they share with the clients.

`FedAvg` averages among eligible clients. Each method of `unlearning.methods` is a strategy with a name of its own
(`PUFSpecial`, `NewtonCG`, `Retrain`, … : `strategies.by_name`). All of them run under Flower's stock `start()` and
under this project's live loop.

May import `unlearning` and Flower; not `server`, `client` or a database. Nothing is imported before it is used: the
command line needs `tls_files` alone, and PyTorch takes seconds. Editors and type checkers read the names below.
"""

from typing import TYPE_CHECKING, Any

from flower_unlearning_names import refuse_shadows

if TYPE_CHECKING:
    from strategies.by_name import MethodStrategy
    from strategies.fedavg import FedAvg as FedAvg

    DpCovered = MethodStrategy
    ExactRidge = MethodStrategy
    FedAU = MethodStrategy
    FedAULearning = MethodStrategy
    FedEraser = MethodStrategy
    FedMemPrune = MethodStrategy
    FedOSD = MethodStrategy
    FedQUIT = MethodStrategy
    GradientAscent = MethodStrategy
    HFKCU = MethodStrategy
    HFKCUInfluence = MethodStrategy
    HFOnline = MethodStrategy
    MoDe = MethodStrategy
    Natural = MethodStrategy
    NegGradPlus = MethodStrategy
    NewtonCG = MethodStrategy
    NoisyFineTuning = MethodStrategy
    NoT = MethodStrategy
    PGA = MethodStrategy
    PUFRegular = MethodStrategy
    PUFSpecial = MethodStrategy
    Retrain = MethodStrategy
    SISA = MethodStrategy

refuse_shadows()

if not TYPE_CHECKING:  # a type checker would take any name for one of these

    def __getattr__(name: str) -> Any:
        """Return FedAvg, or the strategy of the method with this name."""
        if name == "FedAvg":
            from strategies.fedavg import FedAvg

            return FedAvg
        if name.startswith("_") or not name[0].isupper():  # a module, or what Python itself looks for
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from strategies.by_name import strategies_by_name

        known = strategies_by_name()
        if name not in known:
            raise AttributeError(
                f"There is no strategy {name!r}; there are FedAvg, {', '.join(sorted(known))}."
            )
        globals()[name] = known[name]
        return known[name]
