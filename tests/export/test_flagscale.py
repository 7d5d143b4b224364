"""FlagScale: meshes of unlike tensor and data parallelism, and the rules between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from plans import cluster, deepseek, gpt, group, llama, make_plan, uneven_plan
from recording import stage, written

from hetcli.errors import UnsupportedByTargetError
from hetcli.export import render
from hetcli.export.flagscale.meshes import Mesh, mesh_gaps
from hetcli.export.readback import check_directory
from hetcli.perf.configuration import Recompute

MIXED = cluster(group("h-[0-1]", "H100-SXM5-80GB"), group("a", "A100-SXM4-80GB"))


def config(plan: Any) -> dict[str, Any]:
    return dict(yaml.safe_load(render(plan, target="flagscale")["flagscale.yaml"]))


def test_meshes_of_unlike_shape_are_written_and_read_back(tmp_path: Path) -> None:
    plan = uneven_plan(MIXED, llama(), [(12, 2, 4, 1), (12, 2, 4, 1), (8, 4, 2, 2)])
    launch = render(plan)
    train = yaml.safe_load(launch["flagscale.yaml"])["train"]
    hetero = train["system"]["hetero"]
    assert hetero["hetero_process_meshes"] == [2, 1, 1, 4, 2, 4, 1, 1, 2, 1]
    assert hetero["hetero_pipeline_layer_split"] == [12, 12, 8]
    assert hetero["hetero_device_types"] == ["H100-SXM5-80GB", "A100-SXM4-80GB"]
    assert train["system"]["pipeline_model_parallel_size"] == 3
    assert train["model"]["num_query_groups"] == 8
    assert train["model"]["swiglu"] is True
    assert launch.launcher == "flagscale"
    assert any("Experimental" in note for note in launch.notes)
    assert launch["hostfile.flagscale"].splitlines()[2] == "a slots=8 type=A100-SXM4-80GB"
    folder = written(launch, tmp_path)
    checked = check_directory(folder)
    assert checked.target == "flagscale"
    assert checked.differences == ()


@pytest.mark.parametrize(
    ("file", "old", "new", "message"),
    [
        ("flagscale.yaml", "- 12\n", "- 11\n", "layers of every stage"),
        ("flagscale.yaml", "      bf16: true", "      fp16: true", "precision is fp16"),
        ("flagscale.yaml", "0,1,2,3,4,5,6,7", "1,0,2,3,4,5,6,7", "is shown devices"),
        ("hostfile.flagscale", "slots=8", "slots=4", "hostfile.flagscale has"),
        ("run_node_1.sh", "DEVICES=(0 1", "DEVICES=(1 0", "is started on"),
    ],
)
def test_an_edited_flagscale_directory_is_found_out(
    file: str, old: str, new: str, message: str, tmp_path: Path
) -> None:
    folder = written(render(uneven_plan(MIXED, llama(), [(20, 2, 8, 1), (12, 8, 1, 8)])), tmp_path)
    text = (folder / file).read_text()
    if old not in text:
        text = text.replace("- 20\n", "- 12\n")
    (folder / file).write_text(text.replace(old, new, 1))
    differences = check_directory(folder).differences
    assert any(message in difference for difference in differences), differences


def test_the_first_node_starts_the_runner_and_the_others_wait_for_it(tmp_path: Path) -> None:
    launch = render(uneven_plan(MIXED, llama(), [(20, 2, 8, 1), (12, 8, 1, 8)]))
    folder = written(launch, tmp_path)
    stubs = stage(tmp_path / "stubs")
    home = tmp_path / "flagscale"
    home.mkdir()
    (home / "run.py").write_text(
        "import json, os, sys\n"
        "open(os.environ['RECORDING'], 'a').write(json.dumps(dict(\n"
        "    program='run.py', argv=sys.argv[1:], env=dict(os.environ))) + '\\n')\n"
    )
    settings = {"FLAGSCALE_PATH": str(home), "PREFLIGHT": "off"}
    _, [call] = stubs.run(folder, "run_node_0.sh", **settings)
    assert call.argv[:4] == ["--config-path", str(folder), "--config-name", "flagscale"]
    assert "action=run" in call.argv
    result, calls = stubs.run(folder, "run_node_1.sh", **settings)
    assert (result.returncode, calls) == (0, [])


def mesh(tensor: int = 1, data: int = 1, expert: int = 1, size: int = 1, gpu: str = "a") -> Mesh:
    return Mesh(gpu, tensor, data, 1, size, expert_parallel=expert)


def gaps(*found: Mesh, sharded: bool = True, **model: Any) -> list[str]:
    rules = mesh_gaps(found, llama(**model), distributed_optimizer=sharded)
    return [why for _, why, _ in rules]


def test_experts_are_in_all_meshes_or_in_none() -> None:
    """Case flagscale-hetero-ep: the limits that pull request 395 of FlagScale states."""
    assert gaps(mesh(data=4, expert=2), mesh(data=4, expert=4, gpu="b"), prediction_layers=1) == []
    [rule] = gaps(mesh(data=8, expert=1), mesh(data=4, expert=4, size=2, gpu="b"))
    assert "either all meshes" in rule
    [rule] = gaps(mesh(data=8), mesh(data=4, gpu="b"))
    assert "the micro-batch of a mesh" in rule
    [rule] = gaps(mesh(tensor=2), mesh(tensor=1, gpu="b"), prediction_layers=1)
    assert "share the embedding" in rule


def test_a_shared_embedding_is_reduced_partially_over_unlike_replicas() -> None:
    """Source: pre_validate_args in flagscale/train/arguments.py."""
    unlike = mesh(data=6, size=4), mesh(data=4, size=6, gpu="b")
    assert gaps(*unlike) == []
    for model in ({"tied_embeddings": True}, {"prediction_layers": 1}):
        [rule] = gaps(*unlike, **model)
        assert "reduced partially" in rule
        assert gaps(*unlike, sharded=False, **model) == []
    more = {"micro_batches": 4, "zero_stage": 1}
    for model in ({"tied_embeddings": True}, {"prediction_layers": 1}, {}):
        plan = uneven_plan(MIXED, llama(**model), [(16, 4, 4, 1), (16, 4, 2, 2)], **more)
        hetero = config(plan)["train"]["system"]["hetero"]
        assert hetero["use_partial_reduce_for_shared_embedding"] is bool(model)


def test_a_flagscale_directory_with_experts_and_prediction_is_written() -> None:
    where = cluster(group("a", "A800-SXM4-80GB"), group("b", "A100-SXM4-80GB"))
    more = {"expert_parallel": 2, "expert_tensor_parallel": 1}
    plan = uneven_plan(
        where, deepseek(), [(8, 2, 4, 1), (4, 2, 4, 1)], sequence_parallel=True, **more
    )
    system = config(plan)["train"]["system"]
    assert system["hetero"]["hetero_process_meshes"] == [2, 1, 2, 4, 1, 2, 1, 2, 4, 1]
    assert system["expert_model_parallel_size"] == 2
    unlike = uneven_plan(
        where, deepseek(), [(8, 2, 4, 1), (4, 1, 4, 1)], sequence_parallel=True, **more
    )
    with pytest.raises(UnsupportedByTargetError, match="share the embedding"):
        render(unlike)


@pytest.mark.parametrize(
    ("plan", "rule"),
    [
        (uneven_plan(MIXED, llama(), [(16, 2, 4, 1), (16, 4, 2, 1)]), "one number a mesh"),
        (uneven_plan(MIXED, gpt(), [(16, 2, 4, 1), (4, 4, 2, 2)], sequence=2048), "share the emb"),
        (make_plan(MIXED, llama(), [[8, 8], [8, 8]], tensor=8), "meshes run 1F1B"),
        (make_plan(MIXED, llama(), [32], tensor=4, context=2), "context parallelism of 1"),
        (make_plan(MIXED, llama(), [32], data=8, zero_stage=2), "shards optimizer states"),
        (make_plan(MIXED, llama(embedding_scale=2.0), [32], data=8), "no option scales"),
        (
            make_plan(
                MIXED, llama(), [16, 16], tensor=8, recompute=[Recompute("full"), Recompute()]
            ),
            "per-stage lists",
        ),
        (
            make_plan(
                cluster(group("x", "H100-SXM5-80GB"), group("y"), group("z", "H100-SXM5-80GB")),
                llama(),
                [12, 10, 10],
                tensor=8,
            ),
            "sorts hosts by device type",
        ),
    ],
)
def test_what_flagscale_cannot_run_is_refused(plan: Any, rule: str) -> None:
    with pytest.raises(UnsupportedByTargetError) as caught:
        render(plan, target="flagscale")
    assert rule in caught.value.why
    assert "hetcli plan" in caught.value.fix
