"""hetcli: profile, model and plan the training of large models on clusters of unlike GPUs.

`hetcli.plan` and `hetcli.estimate` are the commands as functions; `hetcli.api` has all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hetcli import api as api
    from hetcli.api import EstimateRequest, Plan, PlanOptions, estimate, plan

__all__ = ["EstimateRequest", "Plan", "PlanOptions", "__version__", "api", "estimate", "plan"]

__version__ = "0.1.0"


def __getattr__(name: str) -> Any:
    """The functions are imported when they are first asked for: `hetcli --help` needs none."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    api = importlib.import_module("hetcli.api")
    return api if name == "api" else getattr(api, name)


def __dir__() -> list[str]:
    return sorted(__all__)
