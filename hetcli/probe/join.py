"""Profiles of one node from several tools become one: an inventory, and what others measured."""

from __future__ import annotations

from collections.abc import Sequence

from hetcli.probe.draft import LISTS
from hetcli.spec.profile import Profile

__all__ = ["join_profiles"]


def join_profiles(profiles: Sequence[Profile]) -> tuple[Profile, ...]:
    """One profile a node, in the order of first appearance.

    What the node is comes from the profile that knows most of it (its interfaces, its host), what
    was measured from all. Two profiles of one node by one tool are left as they are: one of them is
    outdated, and only the user knows which.
    """
    nodes: dict[str, list[Profile]] = {}
    for profile in profiles:
        nodes.setdefault(profile.node, []).append(profile)
    joined: list[Profile] = []
    for same in nodes.values():
        if len({profile.source for profile in same}) < len(same):
            joined += same
        else:
            joined.append(_one(same))
    return tuple(joined)


def _one(same: Sequence[Profile]) -> Profile:
    if len(same) == 1:
        return same[0]
    first, *others = sorted(same, key=_knowledge, reverse=True)
    environment = {
        name: value
        for profile in reversed((first, *others))
        for name, value in profile.host.environment.items()
    }
    return first.model_copy(
        update={
            "source": ", ".join(profile.source for profile in (first, *others)),
            "host": first.host.model_copy(update={"environment": environment}),
            "complete": all(profile.complete for profile in same),
            "missing": tuple(each for profile in same for each in profile.missing),
            "notes": tuple(dict.fromkeys(note for profile in same for note in profile.notes)),
            "device_links": first.device_links
            or next((each.device_links for each in others if each.device_links), ()),
            **{
                name: tuple(row for profile in (first, *others) for row in getattr(profile, name))
                for name in LISTS
            },
        }
    )


def _knowledge(profile: Profile) -> tuple[bool, int, int]:
    rates = sum(nic.rate_bytes_per_s is not None for nic in profile.nics)
    return profile.host.cores is not None, rates, len(profile.devices)
