"""Megatron core's own layout class, of a second release, against hetcli's."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

from hetcli.export.megatron.layout import parse_layout, plan_layout

pytestmark = pytest.mark.oracle

# Reads layouts from stdin, one `pipeline_parallel layers prediction_layers text` a line.
READER = """
import json, sys, warnings
warnings.simplefilter("ignore")
sys.path.insert(0, sys.argv[1])
from megatron.core.parallel_state import RankGenerator
from megatron.core.transformer.pipeline_parallel_layer_layout import PipelineParallelLayerLayout
for line in sys.stdin:
    ranks, layers, prediction, text = line.rstrip("\\n").split(" ", 3)
    try:
        layout = PipelineParallelLayerLayout.from_str(text, int(ranks))
        layout.validate_layer_layout(int(layers), int(prediction))
        answer = [["".join(kind.name[0] for kind in chunk) for chunk in rank]
                  for rank in layout.layout]
    except Exception as error:
        answer = str(error)
    print(json.dumps(answer))
ranks = RankGenerator(tp=2, ep=1, dp=2, pp=4, cp=1, order="tp-cp-ep-dp-pp")
print(json.dumps(ranks.get_ranks("pp")))
"""
# The names of the layer kinds begin with these letters.
NAMES = str.maketrans("EtmL", "edml")


def random_case(source: random.Random) -> tuple[int, int, int, str]:
    """A layout that is legal, or broken in one place."""
    ranks, turns = source.randint(1, 6), source.randint(1, 3)
    chunks = [[source.randint(0, 4) for _ in range(turns)] for _ in range(ranks)]
    chunks[0][0] += 1
    prediction = source.choice([0, 0, 1, 2])
    text = plan_layout(chunks, prediction).render()
    layers = sum(map(sum, chunks))
    if source.random() < 0.5:
        place = source.randrange(len(text) + 1)
        end = place + source.randint(0, 1)
        text = text[:place] + source.choice(["t", "|", "E", "L", "m", "l", "x", ""]) + text[end:]
    return ranks, layers, prediction, text


def test_the_layout_class_agrees_on_random_layouts(megatron_core_folder: Path) -> None:
    source = random.Random(0)
    cases = [random_case(source) for _ in range(1000)]
    # Megatron-LM's documentation of the option.
    cases.append((16, 61, 1, "Et*3|(tt|)*29,m|L"))
    result = subprocess.run(
        [sys.executable, "-c", READER, str(megatron_core_folder)],
        input="".join(f"{ranks} {n} {m} {text}\n" for ranks, n, m, text in cases),
        capture_output=True,
        text=True,
        check=True,
        timeout=240,
        env=dict(os.environ),
    )
    *answers, groups = [json.loads(line) for line in result.stdout.splitlines()]
    assert groups == [[first, first + 4, first + 8, first + 12] for first in range(4)]
    accepted = 0
    for (ranks, layers, prediction, text), theirs in zip(cases, answers, strict=True):
        try:
            layout = parse_layout(text)
            layout.check(layers=layers, prediction_layers=prediction, pipeline_parallel=ranks)
        except ValueError:
            layout = None
        assert (layout is None) is isinstance(theirs, str), (text, theirs)
        if layout is None:
            continue
        ours = [
            [stage.translate(NAMES) for stage in layout.stages[rank::ranks]]
            for rank in range(ranks)
        ]
        assert theirs == ours, text
        accepted += 1
    assert 300 < accepted < 900
    assert isinstance(answers[-1], list)
