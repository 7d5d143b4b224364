"""An exported directory, perhaps edited since, read back and held against its plan.json."""

from __future__ import annotations

from hetcli.export.readback.check import Checked, check_directory

__all__ = ["Checked", "check_directory"]
