"""FlagScale's own runner, which starts all nodes over ssh from the first one."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from hetcli.errors import UnsupportedByTargetError
from hetcli.export.launchers.launcher import Launcher
from hetcli.export.placement import Placement
from hetcli.export.planned import Planned

__all__ = ["FLAGSCALE"]

# The runner puts host names into commands of its own without quotes.
_HOST: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


def _check(target: str, planned: Planned, placement: Placement) -> None:
    del target, planned
    for host in placement.hosts:
        if not _HOST.fullmatch(host.name):
            raise UnsupportedByTargetError(
                f"the flagscale launcher cannot name the host {host.name!r}",
                why="its runner writes host names into commands without quotes",
                fix="a host name of letters, digits, dots, hyphens and underscores",
            )


def _settings(planned: Planned, placement: Placement) -> Mapping[str, object]:
    del planned, placement
    return {}


FLAGSCALE = Launcher("flagscale", "launch/flagscale.sh.j2", "python3", _check, _settings)
