"""hetcli: profile, model and plan the training of large models on clusters of unlike GPUs."""

from __future__ import annotations

__all__ = ["__version__"]

__version__ = "0.1.0"
