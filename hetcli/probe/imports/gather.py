"""Several files of one node: Metis writes one a shape, so their rows belong together."""

from __future__ import annotations

from collections.abc import Iterable

from hetcli.probe.draft import LISTS
from hetcli.spec.profile import Profile

__all__ = ["gather"]


def gather(profiles: Iterable[Profile]) -> tuple[Profile, ...]:
    """One profile for each node, source and set of devices; their lists one after the other."""
    groups: dict[tuple[object, ...], list[Profile]] = {}
    for profile in profiles:
        names = tuple(device.name for device in profile.devices)
        groups.setdefault((profile.node, profile.source, names), []).append(profile)
    return tuple(
        same[0].model_copy(
            update={
                name: tuple(row for profile in same for row in getattr(profile, name))
                for name in LISTS
            }
        )
        for same in groups.values()
    )
