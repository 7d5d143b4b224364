"""Which tool wrote a file, by what is in it."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from hetcli.errors import SpecError
from hetcli.probe.imports import layers, nccl_tests, npu_smi, nvbandwidth, topo
from hetcli.probe.imports.foreign import Known
from hetcli.spec.profile import Profile

__all__ = ["read_foreign"]

_TEXT: Final[
    tuple[tuple[Callable[[str], bool], Callable[[str, Known], tuple[Profile, ...]]], ...]
] = (
    (nccl_tests.looks_like_text, nccl_tests.from_text),
    (npu_smi.looks_like_text, npu_smi.from_text),
    (nvbandwidth.looks_like_text, nvbandwidth.from_text),
    (topo.looks_like_text, topo.from_text),
)
_Json = Mapping[str, Any]
_JSON: Final[
    tuple[tuple[Callable[[_Json], bool], Callable[[_Json, Known], tuple[Profile, ...]]], ...]
] = (
    (nccl_tests.looks_like_json, nccl_tests.from_json),
    (nvbandwidth.looks_like_json, nvbandwidth.from_json),
    (layers.looks_like_metis, layers.from_metis),
    (layers.looks_like_sailor, layers.from_sailor),
)


def read_foreign(text: str, known: Known) -> tuple[Profile, ...]:
    """The profiles in a foreign file. Raises SpecError when no tool is recognised."""
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)
        except ValueError as error:
            raise SpecError(
                f"{known.label}: {error}",
                why="it starts like JSON and is none",
                fix="write the file again",
            ) from None
        for looks, read in _JSON:
            if looks(data):
                return read(data, known)
    else:
        for seems, parse in _TEXT:
            if seems(text):
                return parse(text, known)
    raise SpecError(
        f"{known.label}: no format that is known",
        why="read are: nccl-tests (printed or JSON), nvbandwidth (printed or JSON), nvidia-smi "
        "topo -m, npu-smi info, and profiles of Metis and Sailor",
        fix="keep the whole output of the tool, its headers included",
    )
