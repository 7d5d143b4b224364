"""Going on after a fault: published examples, and what every way must keep."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "trial"))
from running_plans import a100, gpt, lost_node, option, planned, resihp
from tiny import configuration, devices, stage

from hetcli.adapt.changes import read_changes
from hetcli.adapt.replan import replan
from hetcli.errors import InfeasibleError, UsageError
from hetcli.search.document import configuration_of
from hetcli.spec.cluster import Cluster
from hetcli.spec.plan import Plan
from hetcli.spec.replan import Replan
from hetcli.trial.holders import parts
from hetcli.trial.program import programs


def test_resihps_example_keeps_the_pipeline_with_five_two_five_layers() -> None:
    document, new = replan(resihp(), read_changes(fail=["n-1:0"]))
    shrunk = option(document, "exclude from the tensor group")
    assert shrunk.layers == ((5, 2, 5),)
    assert shrunk.tensor_parallel == ((2, 1, 2),)
    # Dropping the tensor group leaves two stages; dropping the replica leaves nothing at all.
    stages = [stage([(6 * at, 6)], [(devices(0, 2, f"n-{2 * at}"), 12)], tp=2) for at in range(2)]
    dropped = planned(configuration(stages, batch=12), gpt(12, 2048, 16), a100(3, gpus=2))
    assert document.options[document.chosen].tokens_per_s >= shrunk.tokens_per_s
    assert shrunk.tokens_per_s >= dropped.predicted.tokens_per_s
    assert new.predicted.tokens_per_s == document.options[document.chosen].tokens_per_s


@cache
def lost_node_replanned() -> tuple[Replan, Plan]:
    return replan(lost_node(), read_changes(fail=["n-7"]))


def test_a_lost_node_of_a_3d_plan_leaves_four_of_seven_or_better() -> None:
    document, new = lost_node_replanned()
    kept = option(document, "drop the replica")
    assert {device.node for device in kept.idle} == {"n-1", "n-3", "n-5"}
    assert not kept.reshards
    assert kept.micro_batches == ((32,),)
    fresh = option(document, "new plan")
    assert sum(fresh.layers[0]) == 32
    assert fresh.tokens_per_s > kept.tokens_per_s
    assert fresh.reshards
    assert fresh.break_even_s is not None
    assert len({device.node for device in fresh.idle}) <= 3
    best = document.options[document.chosen]
    assert best.tokens_per_s >= fresh.tokens_per_s * (1 - 1e-9)
    assert "megatron" in best.runs_on
    assert new.target == "megatron"
    assert "resharded" in document.checkpoint


def test_every_way_keeps_the_batch_and_the_layers_and_can_be_executed() -> None:
    for given_, fault in ((resihp(), "n-1:0"), (lost_node(), "n-7"), (lost_node(), "n-0:3")):
        document, new = replan(given_, read_changes(fail=[fault]))
        work, made = given_.inputs.workload, given_.inputs.model
        for each in document.options:
            assert each.global_batch == work.global_batch
            assert all(sum(layers) == made.layer_count for layers in each.layers), each.name
        chosen = configuration_of(new)
        assert parts(chosen, made, programs(chosen))


def test_a_slow_node_gets_fewer_layers() -> None:
    stages = [stage([(4 * at, 4)], [(devices(0, 2, f"n-{at}"), 12)], tp=2) for at in range(3)]
    given_ = planned(configuration(stages, batch=12), gpt(12, 2048, 16), a100(3, gpus=2))
    document, _ = replan(given_, read_changes(slow=["n-1:0.5"]))
    split = option(document, "re-split the layers")
    [layers] = split.layers
    assert layers[1] < 4 < layers[0]
    assert split.tokens_per_s > option(document, "go on unchanged").tokens_per_s
    assert not split.from_checkpoint


def test_a_slow_replica_gets_fewer_micro_batches() -> None:
    stages = [stage([(0, 12)], [(devices(0, 2, f"n-{at}"), 12) for at in range(3)], tp=2)]
    given_ = planned(configuration(stages, batch=36), gpt(12, 2048, 16), a100(3, gpus=2))
    document, _ = replan(given_, read_changes(slow=["n-1:0.5"]))
    routed = option(document, "re-route micro-batches")
    [(first, slow, last)] = routed.micro_batches
    assert first + slow + last == 36
    assert slow < 12 < min(first, last)
    assert routed.tokens_per_s > option(document, "go on unchanged").tokens_per_s


def test_a_lost_replica_of_a_stage_is_covered_by_its_sisters() -> None:
    stages = [
        stage([(6 * at, 6)], [(devices(2 * r, 2, f"n-{at}"), 6) for r in range(3)], tp=2)
        for at in range(2)
    ]
    for zero_stage in (0, 1):
        running = configuration(stages, batch=18, zero_stage=zero_stage)
        given_ = planned(running, gpt(12, 2048, 16), a100(2, gpus=6))
        document, _ = replan(given_, read_changes(fail=["n-1:4"]))
        routed = option(document, "re-route micro-batches")
        assert routed.runs_on == ("free",)
        # ZeRO's parts have to be cut anew when there are two sisters instead of three.
        assert (routed.moved_bytes > 0) is routed.from_checkpoint is (zero_stage == 1)
    assert {(device.node, device.index) for device in routed.idle} == {("n-1", 5)}


def test_the_way_must_run_on_the_target_unless_any_will_do() -> None:
    given_ = lost_node().model_copy(update={"target": "megatron"})
    document, new = replan(given_, read_changes(fail=["n-0:3"]))
    assert "megatron" in document.options[document.chosen].runs_on
    anything, other = replan(given_, read_changes(fail=["n-0:3"]), any_target=True)
    assert other.predicted.tokens_per_s >= new.predicted.tokens_per_s * (1 - 1e-9)
    assert anything.options[anything.chosen].fits


def test_when_nothing_is_left_it_says_what_would_help() -> None:
    with pytest.raises(InfeasibleError) as caught:
        replan(resihp(), read_changes(fail=["n-0:0", "n-0:1", "n-1", "n-2"]))
    assert caught.value.fix


def test_an_added_node_is_used() -> None:
    document, new = replan(lost_node(), read_changes(fail=["n-7"], add=["spare=n-0"]))
    assert document.options[document.chosen].fits
    assert "spare" in new.inputs.cluster.group_of


def test_two_pipelines_of_resihp_keep_at_least_what_either_alternative_brings() -> None:
    stages = [
        stage([(4 * at, 4)], [(devices(2 * r, 2, f"n-{at}"), 12) for r in range(2)], tp=2)
        for at in range(3)
    ]
    given_ = planned(configuration(stages, batch=24), gpt(12, 2048, 16), a100(3, gpus=4))
    document, _ = replan(given_, read_changes(fail=["n-1:0"]))
    best = document.options[document.chosen].tokens_per_s
    assert best >= option(document, "drop the replica").tokens_per_s
    assert best >= option(document, "exclude from the tensor group").tokens_per_s
    assert option(document, "exclude from the tensor group").layers == ((4, 4, 4), (5, 2, 5))


def test_a_failed_and_a_slow_device_at_once() -> None:
    stages = [stage([(4 * at, 4)], [(devices(0, 2, f"n-{at}"), 12)], tp=2) for at in range(3)]
    given_ = planned(configuration(stages, batch=12), gpt(12, 2048, 16), a100(3, gpus=2))
    document, _ = replan(given_, read_changes(fail=["n-1:0"], slow=["n-2:1:0.7"]))
    both = option(document, "exclude from the tensor group, re-split the layers")
    [(first, _, slow)] = both.layers
    assert first > slow
    assert both.tokens_per_s > option(document, "exclude from the tensor group").tokens_per_s
    without = option(document, "exclude from the tensor group, slow ones left out")
    assert without.tensor_parallel == ((2, 1, 1),)


def test_slow_devices_that_are_left_out_still_give_their_state() -> None:
    stages = [stage([(0, 12)], [(devices(0, 2, f"n-{at}"), 6) for at in range(2)], tp=2)]
    given_ = planned(configuration(stages, batch=12), gpt(12, 2048, 16), a100(2, gpus=2))
    slow, _ = replan(given_, read_changes(slow=["n-1:0.1"]))
    failed, _ = replan(given_, read_changes(fail=["n-1"]))
    assert not option(slow, "drop the replica, slow ones left out").from_checkpoint
    assert option(failed, "drop the replica").from_checkpoint


def test_a_spare_takes_the_place_of_a_lost_node() -> None:
    changes = read_changes(fail=["n-7"], add=["spare=n-0"])
    spare = option(replan(lost_node(), changes)[0], "put a spare in its place")
    assert not spare.reshards
    assert not spare.idle
    assert spare.tokens_per_s == pytest.approx(lost_node().predicted.tokens_per_s)


def test_a_node_that_works_again_is_used_again() -> None:
    _, less = lost_node_replanned()
    assert "n-7" not in {device.node for each in less.stages for device in each.devices}
    document, more = replan(less, read_changes(add=["n-7"]))
    assert not more.inputs.cluster.health
    chosen = document.options[document.chosen]
    assert chosen.tokens_per_s > less.predicted.tokens_per_s
    with pytest.raises(UsageError, match="is there already"):
        replan(lost_node(), read_changes(add=["n-7"]))


def test_a_batch_that_may_change_lets_the_replicas_left_share_it_evenly() -> None:
    stages = [stage([(0, 12)], [(devices(0, 2, f"n-{at}"), 16) for at in range(4)], tp=2)]
    running = configuration(stages, batch=64)
    given_ = planned(running, gpt(12, 2048, 16), a100(4, gpus=2), "megatron")
    strict, _ = replan(given_, read_changes(fail=["n-3"]))
    assert option(strict, "drop the replica").micro_batches == ((22, 21, 21),)
    assert option(strict, "drop the replica").runs_on == ("free",)
    assert {each.global_batch for each in strict.options} == {64}
    loose, new = replan(given_, read_changes(fail=["n-3"]), batch_tolerance=0.1)
    even = option(loose, "drop the replica, share out evenly")
    assert even.micro_batches == ((21, 21, 21),)
    assert even.global_batch == 63
    assert "megatron" in even.runs_on
    assert abs(new.inputs.workload.global_batch / 64 - 1) <= 0.1
    assert all(abs(each.global_batch / 64 - 1) <= 0.1 for each in loose.options)


@pytest.mark.parametrize(
    ("nodes", "batches", "idle"),
    [
        (59, {2832}, False),
        (55, {2640, 3080}, False),
        (66, {2640, 3168}, False),
        # No batch of the band splits over 640 devices: some stay idle, and are named.
        (80, set(), True),
    ],
)
def test_sixty_nodes_that_come_and_go_keep_the_batch_within_ten_per_cent(
    nodes: int, batches: set[int], idle: bool
) -> None:
    """ServiceNow/Fast-LLM issue 241: 480 data-parallel GPUs, a batch of 2,880."""
    replicas = [((device,), 6) for node in range(60) for device in devices(0, 8, f"n-{node}")]
    short = configuration([stage([(0, 12)], replicas)], batch=2880)
    running = replace(short, sequence=2048)
    given_ = planned(running, gpt(12, 2048, 16), a100(60), "megatron")
    changes = read_changes(
        remove=[f"n-{node}" for node in range(nodes, 60)],
        add=[f"m-{node}=n-0" for node in range(60, nodes)],
    )
    document, new = replan(given_, changes, batch_tolerance=0.1)
    chosen = document.options[document.chosen]
    assert not batches or new.inputs.workload.global_batch in batches
    assert "megatron" in chosen.runs_on
    assert (len(chosen.idle) > 0) is idle
    assert 2592 <= new.inputs.workload.global_batch <= 3168


def test_a_thousand_gpus_are_replanned_within_seconds() -> None:
    stages = [
        stage(
            [(16 * at, 16)],
            [(devices(0, 8, f"n-{64 * at + node:03d}"), 16) for node in range(64)],
            tp=8,
        )
        for at in range(2)
    ]
    group = {
        "name": "n-[000-127]",
        "gpu": "A100-SXM4-80GB",
        "gpus": 8,
        "nics": [{"kind": "infiniband", "rate": "200Gbps", "count": 4}],
    }
    where = Cluster.model_validate({"name": "large", "nodes": [group]}, strict=False)
    given_ = planned(configuration(stages, batch=1024), gpt(), where, "megatron")
    begun = time.process_time()
    document, _ = replan(given_, read_changes(fail=["n-005"]), any_target=True)
    # Half a second or so where nothing else runs; this is processor time, doubled for old ones.
    assert time.process_time() - begun < 4
    assert document.options[document.chosen].tokens_per_s > 0.9 * document.before_tokens_per_s


def test_where_money_counts_the_cheapest_way_is_chosen() -> None:
    groups = [
        {"name": name, "gpu": "A100-SXM4-80GB", "gpus": 8, "price_per_hour": price}
        for name, price in (("n-0", 1.0), ("n-1", 1.0), ("n-2", 4.0))
    ]
    where = Cluster.model_validate({"name": "dear", "nodes": groups}, strict=False)
    stages = [stage([(0, 12)], [(devices(0, 8, f"n-{at}"), 12) for at in range(3)], tp=8)]
    fast = planned(configuration(stages, batch=36), gpt(12, 2048, 16), where, "megatron")
    work = fast.inputs.workload.model_copy(update={"objective": "cost"})
    inputs = fast.inputs.model_copy(update={"workload": work})
    cheap = fast.model_copy(update={"inputs": inputs})
    _, quick = replan(fast, read_changes(fail=["n-0"]))
    _, saving = replan(cheap, read_changes(fail=["n-0"]))
    assert quick.predicted.tokens_per_s >= saving.predicted.tokens_per_s
    assert saving.predicted.cost_per_step is not None
    assert quick.predicted.cost_per_step is not None
    assert saving.predicted.cost_per_step < quick.predicted.cost_per_step
