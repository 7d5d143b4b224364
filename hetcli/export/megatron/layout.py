"""The grammar of Megatron-LM's `--pipeline-model-parallel-layout` (core 0.13 and later).

`E` is the embedding, `t` a decoder layer, `m` a multi-token-prediction layer, `L` the loss; `|`
ends a (virtual) stage, commas are cosmetic, `x*3` repeats one character and `(...)*3` a group.
Groups do not nest. Virtual stages run chunk by chunk: stage i belongs to pipeline rank i mod pp.
Source: megatron/core/transformer/pipeline_parallel_layer_layout.py.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from hetcli.spec.model.architecture import MAX_LAYERS

__all__ = ["Layout", "parse_layout", "plan_layout"]

_KINDS: Final = "EtmL"
_GROUP: Final = re.compile(r"\(([^()]+)\)\*(\d{1,6})")
_ONE: Final = re.compile(r"([EtmL|])\*(\d{1,6})")


@dataclass(frozen=True, slots=True)
class Layout:
    """Every virtual stage as the characters of its layers, in the order of execution."""

    stages: tuple[str, ...]

    @property
    def decoders(self) -> tuple[int, ...]:
        """Decoder layers of every virtual stage."""
        return tuple(stage.count("t") for stage in self.stages)

    def render(self) -> str:
        """The plain spelling, without groups: `Et*2|t*3|t*4|t*3L`."""
        return "|".join(
            "".join(_repeat(kind, len(list(run))) for kind, run in groupby(stage))
            for stage in self.stages
        )

    def chunks(self, pipeline_parallel: int) -> tuple[tuple[int, ...], ...]:
        """Decoder layers of each chunk of each pipeline rank."""
        return tuple(self.decoders[rank::pipeline_parallel] for rank in range(pipeline_parallel))

    def check(self, *, layers: int, prediction_layers: int, pipeline_parallel: int) -> None:
        """Raise ValueError with Megatron-LM's own rule where it would refuse the layout."""
        sequence = "".join(self.stages)
        rules = (
            (
                len(self.stages) % pipeline_parallel == 0,
                f"{len(self.stages)} stages are no multiple of pipeline_parallel "
                f"{pipeline_parallel}",
            ),
            (
                sequence.startswith("E") and sequence.count("E") == 1,
                "the first layer, and only it, is the embedding E",
            ),
            (
                sequence.endswith("L") and sequence.count("L") == 1,
                "the last layer, and only it, is the loss L",
            ),
            (
                sequence.count("t") == layers,
                f"{sequence.count('t')} decoder layers t; the model has {layers}",
            ),
            (
                sequence.count("m") == prediction_layers,
                f"{sequence.count('m')} prediction layers m; the model has {prediction_layers}",
            ),
            (
                "t" not in sequence.partition("m")[2],
                "a decoder layer t stands behind a prediction layer m",
            ),
            (
                sum("m" in stage for stage in self.stages) <= 1
                and not any("m" in stage for stage in self.stages[:-pipeline_parallel]),
                "prediction layers m stand together in one stage of the last chunk",
            ),
        )
        for holds, rule in rules:
            if not holds:
                raise ValueError(f"the layout {self.render()!r} breaks a rule: {rule}")


def parse_layout(text: str) -> Layout:
    """The layout that Megatron-LM reads from `text`.

    Raises ValueError on a character that it does not know (a blank and a nested group are such),
    and on more layers than any model has.
    """
    expanded = text.replace(",", "")
    for pattern in (_GROUP, _ONE):
        size = sum(len(m[1]) * int(m[2]) for m in pattern.finditer(expanded))
        if size > MAX_LAYERS:
            raise ValueError(f"the layout holds more than {MAX_LAYERS} layers")
        expanded = pattern.sub(lambda m: m[1] * int(m[2]), expanded)
    unknown = sorted(set(expanded) - set(_KINDS) - {"|"})
    if unknown:
        raise ValueError(
            f"the layout {text!r} holds {' '.join(map(repr, unknown))}; "
            "layers are E, t, m and L, groups do not nest, and there are no blanks"
        )
    return Layout(tuple(expanded.split("|")))


def plan_layout(chunks: Sequence[Sequence[int]], prediction_layers: int = 0) -> Layout:
    """The layout of `chunks[pipeline rank][chunk]` decoder layers.

    The embedding is the first stage's, the prediction layers and the loss are the last one's.
    """
    stages = ["t" * count for chunk in zip(*chunks, strict=True) for count in chunk]
    stages[0] = "E" + stages[0]
    stages[-1] += "m" * prediction_layers + "L"
    return Layout(tuple(stages))


def _repeat(kind: str, count: int) -> str:
    return kind if count == 1 else f"{kind}*{count}"
