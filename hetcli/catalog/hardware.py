"""GPUs and links by any of their names; the data are in gpus.yaml and links.yaml."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from types import MappingProxyType
from typing import Any, Final, Generic, TypeVar

import yaml

from hetcli.catalog.gpu import Gpu
from hetcli.catalog.link import LinkKind
from hetcli.errors import SpecError, UnknownNameError
from hetcli.units import parse_bytes, parse_duration, parse_rate

__all__ = ["find_gpu", "find_link", "load_gpus", "load_links", "spelling"]

EntryT = TypeVar("EntryT", bound=Gpu | LinkKind)

# Words that drivers and shops put before a card's name, and that tell no two cards apart.
_BRANDS: Final = frozenset({"nvidia", "tesla", "geforce", "amd", "instinct", "intel", "huawei"})
_SEPARATORS: Final = re.compile(r"[\s_-]+")
_TERA: Final = 1e12


def _peaks(tflops: Mapping[str, float]) -> dict[str, float]:
    return {dtype: float(round(rate * _TERA)) for dtype, rate in tflops.items()}


# Keys of the data files, written as people write quantities, and the SI field each becomes.
_QUANTITIES: Final[Mapping[str, tuple[str, Callable[[Any], object]]]] = {
    "memory": ("memory_bytes", parse_bytes),
    "memory_rate": ("memory_bytes_per_s", parse_rate),
    "peak_tflops": ("peak_flops", _peaks),
    "usable_tflops": ("usable_flops", _peaks),
    "rate": ("bytes_per_s", lambda text: None if text is None else parse_rate(text)),
    "latency": ("latency_s", parse_duration),
    "source": ("source", "; ".join),
}


@dataclass(frozen=True)
class _Catalog(Generic[EntryT]):
    """Entries by name, in the order of the file, and by every spelling."""

    entries: Mapping[str, EntryT]
    by_spelling: Mapping[str, EntryT]


def spelling(name: str) -> str:
    """What is left of a name without case, separators and leading brand words.

    `NVIDIA A100-SXM4-80GB`, `a100_sxm4_80gb` and `A100 SXM4 80GB` are one spelling.
    """
    words = _SEPARATORS.split(name.strip().lower())
    while len(words) > 1 and words[0] in _BRANDS:
        del words[0]
    return "".join(words)


def _parse(file: str) -> list[dict[str, Any]]:
    text = resources.files("hetcli.catalog").joinpath(file).read_text("utf-8")
    # The C parser is several times as fast; PyYAML built without libyaml does not have it.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    document: dict[str, list[dict[str, Any]]] = yaml.load(text, Loader=loader)
    return document[file.removesuffix(".yaml")]


def _fields(raw: Mapping[str, Any]) -> dict[str, Any]:
    fields = {}
    for key, value in raw.items():
        field, convert = _QUANTITIES.get(key, (key, None))
        fields[field] = value if convert is None else convert(value)
    return fields


def _index(file: str, entries: Iterable[EntryT]) -> _Catalog[EntryT]:
    by_name: dict[str, EntryT] = {}
    by_spelling: dict[str, EntryT] = {}
    for entry in entries:
        for name in (entry.name, *entry.aliases):
            key = spelling(name)
            if key in by_spelling:
                raise SpecError(
                    f"{file}: {name!r} of {entry.name}",
                    why=f"{by_spelling[key].name} already answers to that spelling",
                    fix="names and aliases differ in more than case, separators and brand",
                )
            by_spelling[key] = entry
        by_name[entry.name] = entry
    return _Catalog(MappingProxyType(by_name), MappingProxyType(by_spelling))


@cache
def _gpus() -> _Catalog[Gpu]:
    file = "gpus.yaml"
    return _index(file, (Gpu.model_validate(_fields(raw), strict=False) for raw in _parse(file)))


@cache
def _links() -> _Catalog[LinkKind]:
    file = "links.yaml"
    return _index(
        file, (LinkKind.model_validate(_fields(raw), strict=False) for raw in _parse(file))
    )


def _find(catalog: _Catalog[EntryT], name: str, kind: str, otherwise: str) -> EntryT:
    found = catalog.by_spelling.get(spelling(name))
    if found is not None:
        return found
    shown = name if len(name) <= 60 else f"{name[:57]}..."
    near = difflib.get_close_matches(spelling(name[:60]), catalog.by_spelling, n=5, cutoff=0.5)
    names = list(dict.fromkeys(catalog.by_spelling[match].name for match in near))[:3]
    meant = f"the nearest are {', '.join(names)}; " if names else ""
    raise UnknownNameError(
        f"unknown {kind} {shown!r}",
        why="no entry of the catalogue has this name or alias",
        fix=meant + otherwise,
    )


def load_gpus() -> Mapping[str, Gpu]:
    """Every GPU of the catalogue by its name, in the order of the file; read once."""
    return _gpus().entries


def find_gpu(name: str) -> Gpu:
    """The GPU with this name or alias. Raises UnknownNameError with the nearest names."""
    otherwise = "`hetcli gpus` lists all; a cluster file can also describe a card of its own"
    return _find(_gpus(), name, "GPU", otherwise)


def load_links() -> Mapping[str, LinkKind]:
    """Every kind of link of the catalogue by its name, in the order of the file; read once."""
    return _links().entries


def find_link(name: str) -> LinkKind:
    """The link with this name or alias. Raises UnknownNameError with the nearest names."""
    otherwise = f"known links: {', '.join(load_links())}"
    return _find(_links(), name, "link", otherwise)
