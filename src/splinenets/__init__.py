"""SplineNets: continuous neural decision graphs (Keskin & Izadi, NeurIPS 2018)."""

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from .interface import *  # noqa: F403
else:

    def __getattr__(name: str) -> Any:
        """A part of the package, or a name of ``interface``: imported when it is first asked for.

        So ``splinenets --help`` need not wait for torch, nor ``import splinenets`` for Accelerate.
        """
        if not name.startswith("_") and find_spec(f"{__name__}.{name}"):
            return import_module(f".{name}", __name__)
        interface = None if name.startswith("_") and name != "__all__" else import_module(".interface", __name__)
        if not hasattr(interface, name):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        found = globals()[name] = getattr(interface, name)
        return found

    def __dir__() -> list[str]:
        return sorted({*globals(), *import_module(".interface", __name__).__all__, "hub", "training"})
