"""What holds for any valid cluster, model and batch."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from problems import Question, questions

from hetcli.errors import ConfigurationError, HetcliError, InfeasibleError
from hetcli.perf.hardware import Hardware
from hetcli.perf.resolve import resolve
from hetcli.perf.rules import check
from hetcli.perf.step import predict
from hetcli.search import PlanOptions, configuration_of, plan
from hetcli.spec.plan import Plan, Target

slow = settings(
    deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
targets: st.SearchStrategy[Target] = st.sampled_from(["megatron", "deepspeed"])


def planned(question: Question, target: Target) -> Plan | HetcliError:
    try:
        return plan(
            cluster=question.cluster,
            model=question.model,
            workload=question.workload,
            options=PlanOptions(target=target),
        )
    except (InfeasibleError, ConfigurationError) as error:
        return error


def check_plan(found: Plan, hardware: Hardware) -> None:
    workload, model = found.inputs.workload, found.inputs.model
    degrees = found.parallelism
    assert sum(stage.layers for stage in found.stages) == model.layer_count
    devices = [(d.node, d.index) for stage in found.stages for d in stage.devices]
    usable = {(d.node, d.index) for node in hardware.nodes for d in node.device_ids}
    assert len(devices) == len(set(devices))
    assert set(devices) <= usable
    assert set(devices) | {(d.node, d.index) for d in found.search.idle_devices} == usable
    assert degrees.data_parallel is not None
    assert workload.global_batch == (
        degrees.micro_batch_size * degrees.data_parallel * degrees.gradient_accumulation
    )
    assert {(d.node, d.index) for d in found.predicted.devices} == set(devices)
    for device in found.predicted.devices:
        assert sum(item.memory_bytes for item in device.items) == device.peak_memory_bytes
        assert device.peak_memory_bytes + workload.memory_margin <= device.capacity_bytes
    step = found.predicted.step_time_s
    assert sum(found.predicted.breakdown_s.values()) == pytest.approx(step, rel=1e-12)
    assert found.certificate.lower_bound_s is not None
    assert found.certificate.gap is not None
    assert 0 < found.certificate.lower_bound_s <= step
    assert found.certificate.gap == pytest.approx(step / found.certificate.lower_bound_s - 1)
    search = found.search
    assert search.seen == search.scored + sum(search.pruned.values())
    assert Plan.model_validate_json(found.model_dump_json()) == found


@slow
@given(questions, targets)
def test_a_question_has_a_sound_plan_or_a_reason(question: Question, target: Target) -> None:
    found = planned(question, target)
    if isinstance(found, HetcliError):
        assert found.what
        assert found.why
        assert found.fix
        return
    hardware = resolve(question.cluster)
    check_plan(found, hardware)
    again = configuration_of(found)
    check(again, question.model, hardware)
    prediction = predict(again, model=question.model, workload=question.workload, hardware=hardware)
    assert prediction.step_time_s == found.predicted.step_time_s
    assert prediction.breakdown.total == pytest.approx(prediction.step_time_s)


@settings(slow, max_examples=8)
@given(questions, targets)
def test_a_question_has_one_answer(question: Question, target: Target) -> None:
    one, other = planned(question, target), planned(question, target)
    if isinstance(one, Plan):
        assert isinstance(other, Plan)
        assert one.model_dump_json() == other.model_dump_json()
    else:
        assert str(one) == str(other)
