"""What all importers share: a profile of a node of which only another tool's output is known."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hetcli import __version__
from hetcli.errors import SpecError
from hetcli.spec.model.architecture import Model
from hetcli.spec.profile import ComputeDtype, DeviceInventory, Host, Profile, Spread

__all__ = ["Known", "foreign_profile", "listed_device", "once", "unreadable"]


@dataclass(frozen=True)
class Known:
    """What the user knows and the file does not say; `label` is what errors call the file."""

    label: str
    name: str | None = None
    device: str | None = None
    model: Model | None = None
    sequence: int | None = None
    dtype: ComputeDtype | None = None
    ranks: int | None = None

    @property
    def node(self) -> str:
        """What to call a node that the file does not name."""
        return self.name or "imported"


def foreign_profile(
    node: str,
    source: str,
    *,
    devices: Sequence[DeviceInventory] = (),
    environment: Mapping[str, str] | None = None,
    **parts: Any,
) -> Profile:
    """A profile whose host is unknown but for its name. `parts` are lists of the profile."""
    now = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
    host = Host(
        hostname=node,
        cores=None,
        memory_bytes=None,
        cpu=None,
        cpu_vendor=None,
        os=None,
        python=None,
        torch=None,
        driver=None,
        cuda=None,
        nccl=None,
        environment=environment or {},
    )
    return Profile(
        hetcli_version=__version__,
        created=now,
        source=source,
        complete=True,
        node=node,
        host=host,
        devices=tuple(devices),
        **parts,
    )


def listed_device(index: int, name: str, bus_id: str | None = None) -> DeviceInventory:
    """A GPU of which only the name (and place) is known."""
    return DeviceInventory(
        index=index,
        name=name,
        uuid=None,
        pci_bus_id=bus_id,
        memory_total_bytes=None,
        memory_free_bytes=None,
        notes=("imported: memory is not known",),
    )


def once(seconds: float) -> Spread:
    """A time of which only one value was printed."""
    return Spread(median=seconds, p95=seconds, minimum=seconds, repeats=1)


def unreadable(label: str, what: str, *, why: str, fix: str) -> SpecError:
    """The error for a file that is not what it looks like."""
    return SpecError(f"{label}: {what}", why=why, fix=fix)
