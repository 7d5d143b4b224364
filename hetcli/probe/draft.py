"""A profile while it grows: rows come in, and every step leaves a whole document to save."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from typing import Final

from hetcli import __version__
from hetcli.probe.wire import ROWS, NodeFacts
from hetcli.spec.profile import Measurement, Missing, Profile

__all__ = ["LISTS", "Draft"]

# The lists of a profile that measuring fills.
LISTS: Final = tuple(ROWS)


class Draft:
    """The profile of one node, with what an earlier run measured (`previous`)."""

    def __init__(
        self,
        node: str,
        facts: NodeFacts,
        *,
        previous: Profile | None = None,
        save: Callable[[Profile], None],
    ) -> None:
        self._save = save
        now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        fresh = Profile(
            hetcli_version=__version__,
            created=now,
            complete=False,
            node=node,
            host=facts.host,
            devices=facts.devices,
            nics=facts.nics,
            device_links=facts.device_links,
            nic_distances=facts.nic_distances,
            notes=facts.notes,
        )
        kept = {} if previous is None else {name: getattr(previous, name) for name in LISTS}
        self.profile = fresh.model_copy(update=kept)
        self.save()

    def save(self) -> None:
        """Hand the document as it is to whoever keeps it."""
        self._save(self.profile)

    def add(self, field: str, record: Measurement) -> None:
        """Append a row. It is saved with the end of its step."""
        self.profile = self.profile.model_copy(
            update={field: (*getattr(self.profile, field), record)}
        )

    def drop_links(self, rows: Sequence[Measurement]) -> None:
        """Take rows out that will be measured again."""
        kept = tuple(row for row in self.profile.links if row not in rows)
        self.profile = self.profile.model_copy(update={"links": kept})

    def miss(self, step: str, why: str, nodes: tuple[str, ...] = ()) -> None:
        """Say that a step gave no result."""
        missing = Missing(step=step, why=why, nodes=nodes)
        self.profile = self.profile.model_copy(update={"missing": (*self.profile.missing, missing)})

    def note(self, text: str) -> None:
        """Say something about the whole profile."""
        self.profile = self.profile.model_copy(update={"notes": (*self.profile.notes, text)})

    def update_host(self, **facts: object) -> None:
        """Correct what is known of the host."""
        host = self.profile.host.model_copy(update=facts)
        self.profile = self.profile.model_copy(update={"host": host})

    def update_device(self, index: int, **facts: object) -> None:
        """Correct what is known of a device."""
        devices = tuple(
            each.model_copy(update=facts) if each.index == index else each
            for each in self.profile.devices
        )
        self.profile = self.profile.model_copy(update={"devices": devices})

    def finish(self) -> Profile:
        """The last document: complete when no step is missing."""
        self.profile = self.profile.model_copy(update={"complete": not self.profile.missing})
        self.save()
        return self.profile
