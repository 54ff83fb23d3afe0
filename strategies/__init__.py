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
    from strategies.by_name import MethodStrategy as ExactRidge
    from strategies.by_name import MethodStrategy as FedAU
    from strategies.by_name import MethodStrategy as FedAULearning
    from strategies.by_name import MethodStrategy as FedEraser
    from strategies.by_name import MethodStrategy as FedMemPrune
    from strategies.by_name import MethodStrategy as FedOSD
    from strategies.by_name import MethodStrategy as FedQUIT
    from strategies.by_name import MethodStrategy as GradientAscent
    from strategies.by_name import MethodStrategy as HFKCU  # noqa: N814 - the method's name
    from strategies.by_name import MethodStrategy as HFKCUInfluence
    from strategies.by_name import MethodStrategy as HFOnline
    from strategies.by_name import MethodStrategy as MoDe
    from strategies.by_name import MethodStrategy as Natural
    from strategies.by_name import MethodStrategy as NegGradPlus
    from strategies.by_name import MethodStrategy as NewtonCG
    from strategies.by_name import MethodStrategy as NoT
    from strategies.by_name import MethodStrategy as PGA  # noqa: N814 - the method's name
    from strategies.by_name import MethodStrategy as PUFRegular
    from strategies.by_name import MethodStrategy as PUFSpecial
    from strategies.by_name import MethodStrategy as Retrain
    from strategies.by_name import MethodStrategy as SISA  # noqa: N814 - the method's name
    from strategies.fedavg import FedAvg

__all__ = [
    "HFKCU",
    "PGA",
    "SISA",
    "ExactRidge",
    "FedAU",
    "FedAULearning",
    "FedAvg",
    "FedEraser",
    "FedMemPrune",
    "FedOSD",
    "FedQUIT",
    "GradientAscent",
    "HFKCUInfluence",
    "HFOnline",
    "MoDe",
    "Natural",
    "NegGradPlus",
    "NewtonCG",
    "NoT",
    "PUFRegular",
    "PUFSpecial",
    "Retrain",
]

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
