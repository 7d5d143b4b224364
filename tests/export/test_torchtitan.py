"""torchtitan: what its registry builds is written in Python, the rest is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from plans import cluster, group, llama, make_plan
from recording import written

from hetcli.catalog.presets import find_preset
from hetcli.errors import UnsupportedByTargetError
from hetcli.export import render
from hetcli.export.readback import check_directory
from hetcli.perf.configuration import Recompute
from hetcli.spec.plan import Plan

WHERE = cluster(group("n-[0-1]", "H100-SXM5-80GB"), group("a"))


def plan(layers: Any, **more: Any) -> Plan:
    return make_plan(WHERE, more.pop("model", find_preset("llama-3.1-8b")), layers, **more)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("'layers.11'],", "'layers.11', 'layers.12'],", "layers of every part"),
        ("'tensor_parallel_degree': 2", "'tensor_parallel_degree': 4", "tensor_parallel is 4"),
        ("'local_batch_size': 8", "'local_batch_size': 4", "gradient_accumulation is 4"),
        ("bfloat16", "float32", "precision is fp32"),
        ("_replicate_degree': 1", "_replicate_degree': 2", "data_parallel is 8"),
        ("checkpoint = None", "checkpoint = FullAC.Config()", "recompute is full"),
    ],
)
def test_an_edited_configuration_is_found_out(
    old: str, new: str, message: str, tmp_path: Path
) -> None:
    folder = written(render(plan([12, 11, 9], tensor=2, data=4), target="torchtitan"), tmp_path)
    assert check_directory(folder).differences == ()
    path = folder / "titan_plan.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))
    differences = check_directory(folder).differences
    assert any(message in difference for difference in differences), differences


@pytest.mark.parametrize(
    ("made", "rule"),
    [
        (plan([32], data=8, model=llama()), "registry has"),
        (plan([32], data=8, model=find_preset("llama-3-8b")), "registry has"),
        (plan([32], data=8, recompute=Recompute("full", 4)), "holds for all layers"),
        (plan([32], data=8, recompute=Recompute("selective")), "keeps other activations"),
        (plan([20, 12], tensor=8, recompute=[Recompute("full"), Recompute()]), "for all layers"),
        (plan([32, 0], tensor=8), "a part of the model has a layer"),
        (plan([[8, 8], [8, 8]], tensor=8, micro_batches=5), "rounds of other sizes than 2"),
        (plan([20, 12], tensor=8, micro_batches=1), "as many micro-batches as stages"),
        (
            plan([32], tensor=4, context=2, sequence=8 * 513, sequence_parallel=True),
            "4104 % 16 = 8",
        ),
        (plan([32], data=8, precision="fp16"), "bf16 and fp32"),
        (plan([32], data=8, zero_stage=1, offload="optimizer"), "was not planned"),
        (plan([20, 12], tensor=8, schedule="zb-h1"), "1F1B and Interleaved1F1B"),
    ],
)
def test_what_torchtitan_cannot_run_is_refused(made: Plan, rule: str) -> None:
    with pytest.raises(UnsupportedByTargetError) as caught:
        render(made, target="torchtitan")
    assert rule in caught.value.why
    assert "hetcli" in caught.value.fix


def test_what_was_planned_as_zero_1_says_that_it_shards_more() -> None:
    notes = render(plan([32], data=8), target="torchtitan").notes
    assert any("no ZeRO-1" in note for note in notes)
