"""The commands as functions, with the names and the meaning that they have on the command line.

    import hetcli

    plan = hetcli.plan("sample:dgx-a100-v100", "llama-3-8b", global_batch=512, sequence=4096)
    print(plan.predicted.step_time_s, plan.certificate.gap)
    hetcli.api.report(plan, "report.html")

Clusters, models and workloads are what the options take (a path, `sample:NAME`, a preset, a quick
cluster) or the records that were read from them. Expected failures are `hetcli.errors.HetcliError`.
"""

from __future__ import annotations

from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, Literal

from hetcli.adapt.changes import read_changes
from hetcli.adapt.files import read_logs
from hetcli.adapt.observe import observe as _observe
from hetcli.adapt.replan import replan as _replan
from hetcli.catalog.inputs import read_cluster, read_model, read_workload
from hetcli.errors import UsageError
from hetcli.perf.resolve import resolve
from hetcli.report.comparison import comparison_document
from hetcli.search import EstimateRequest, PlanOptions
from hetcli.search import estimate as _estimate
from hetcli.search import plan as _plan
from hetcli.search.explain import explain as _explain
from hetcli.search.replay import replay
from hetcli.spec.cluster import Cluster
from hetcli.spec.explanation import Explanation
from hetcli.spec.model.architecture import Model
from hetcli.spec.observation import Observation
from hetcli.spec.plan import Plan
from hetcli.spec.profile import Profile
from hetcli.spec.replan import Replan
from hetcli.spec.source import read_document, write_text_atomically
from hetcli.spec.trial import Trial
from hetcli.spec.workload import AttentionKernel, Objective, Precision, Pretrain

__all__ = [
    "Cluster",
    "EstimateRequest",
    "Explanation",
    "Model",
    "Observation",
    "Plan",
    "PlanOptions",
    "Pretrain",
    "Profile",
    "Replan",
    "Trial",
    "compare",
    "estimate",
    "explain",
    "export",
    "observe",
    "plan",
    "read_plan",
    "replan",
    "report",
    "write_plan",
]

_Path = str | PathLike[str]


def plan(
    cluster: str | Cluster,
    model: str | Model,
    *,
    workload: str | Pretrain | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: Precision | None = None,
    attention: AttentionKernel | None = None,
    memory_margin: str | None = None,
    objective: Objective | None = None,
    options: PlanOptions | None = None,
) -> Plan:
    """The best plan, as `hetcli plan` finds it; `options` fixes degrees and sets limits.

    Raises UsageError for a wrong input, InfeasibleError where nothing fits.
    """
    known = _model(model)
    flags = (global_batch, sequence, precision, attention, memory_margin, objective)
    return _plan(
        cluster=_cluster(cluster),
        model=known,
        workload=_workload(workload, known, flags),
        options=options or PlanOptions(),
    )


def estimate(
    cluster: str | Cluster,
    model: str | Model,
    *,
    workload: str | Pretrain | None = None,
    global_batch: int | None = None,
    sequence: int | None = None,
    precision: Precision | None = None,
    attention: AttentionKernel | None = None,
    memory_margin: str | None = None,
    request: EstimateRequest | None = None,
) -> Plan:
    """The prediction for one configuration, as `hetcli estimate` gives it, whether it fits or not.

    Raises UsageError for a wrong input, ConfigurationError for degrees that no framework can run.
    """
    known = _model(model)
    flags = (global_batch, sequence, precision, attention, memory_margin, None)
    return _estimate(
        cluster=_cluster(cluster),
        model=known,
        workload=_workload(workload, known, flags),
        request=request or EstimateRequest(),
    )


def export(
    plan: Plan,
    directory: _Path,
    *,
    target: Literal["megatron", "deepspeed", "flagscale", "torchtitan", "generic"] | None = None,
    launcher: str | None = None,
    target_version: str | None = None,
    force: bool = False,
) -> None:
    """Write the launch directory of a plan, as `hetcli export` does.

    Raises UnsupportedByTargetError where the target cannot run the plan, OutputError where the
    directory cannot be written.
    """
    from hetcli.export import render, write_directory

    launch = render(plan, target=target, launcher=launcher, target_version=target_version)
    write_directory(launch, str(directory), force=force)


def explain(plan: Plan, *, what_if: bool = True) -> Explanation:
    """What binds a plan, what was rejected and what would help, as `hetcli explain` says it.

    With `what_if` the search runs again with more and faster hardware.
    """
    return _explain(plan, what_if=what_if)


def replan(
    plan: Plan,
    *,
    fail: Sequence[str] = (),
    slow: Sequence[str] = (),
    add: Sequence[str] = (),
    remove: Sequence[str] = (),
    batch_tolerance: float = 0.0,
    any_target: bool = False,
) -> tuple[Replan, Plan]:
    """The ways to go on after a change and the plan of the best one, as `hetcli replan`.

    Changes are spelled as on the command line (`v100-1:2`, `a100-0:3:0.7`); `batch_tolerance` is
    a share. Raises UsageError for a change that cannot be read, InfeasibleError where nothing that
    is left can run the job.
    """
    changes = read_changes(fail=fail, slow=slow, add=add, remove=remove)
    return _replan(plan, changes, batch_tolerance=batch_tolerance, any_target=any_target)


def observe(
    logs: Sequence[_Path], plan: Plan | None = None, *, tolerance: float = 0.1
) -> Observation:
    """What the logs of one run say, beside its plan, as `hetcli observe`; `tolerance` is a share.

    Raises SpecError for a log without an iteration.
    """
    return _observe(read_logs([str(log) for log in logs]), plan, tolerance=tolerance)


def compare(*plans: Plan) -> dict[str, Any]:
    """Plans side by side, each against the first, as `hetcli compare --json` prints them."""
    return comparison_document([(f"plan {at}", each) for at, each in enumerate(plans)])


def report(
    plan: Plan,
    path: _Path,
    *,
    what_if: bool = False,
    profiles: Sequence[Profile] = (),
    trial: Trial | None = None,
    observation: Observation | None = None,
) -> None:
    """Write a report; the suffix (.html, .md, .json for a trace) says which, as `hetcli report`.

    With `what_if` it holds what other hardware would bring, for which the search runs again; with
    the records of measurements, what they say beside the plan.

    Raises UsageError for another suffix, OutputError where the file cannot be written.
    """
    from hetcli.report.forms import Report

    hardware = resolve(plan.inputs.cluster)
    made = Report(
        plan,
        replay(plan, hardware),
        hardware,
        profiles=tuple(profiles),
        explanation=explain(plan, what_if=what_if),
        trial=trial,
        observation=observation,
    )
    forms = {".html": made.html, ".htm": made.html, ".md": made.markdown, ".json": made.trace}
    suffix = Path(path).suffix.lower()
    if suffix not in forms:
        raise UsageError(
            f"the suffix of {path}",
            why="it does not say which form the report is to have",
            fix="name it .html, .md or .json (a trace)",
        )
    write_text_atomically(path, forms[suffix]())


def read_plan(path: _Path) -> Plan:
    """The plan in a file. Raises SpecError with the line of what is wrong."""
    return read_document(path, Plan)


def write_plan(plan: Plan, path: _Path) -> None:
    """Write plan.json. Raises OutputError."""
    write_text_atomically(path, plan.model_dump_json(indent=2) + "\n")


def _cluster(given: str | Cluster) -> Cluster:
    return read_cluster(given) if isinstance(given, str) else given


def _model(given: str | Model) -> Model:
    return read_model(given) if isinstance(given, str) else given


def _workload(
    given: str | Pretrain | None, model: Model, flags: tuple[int | str | None, ...]
) -> Pretrain:
    if isinstance(given, Pretrain):
        if any(flag is not None for flag in flags):
            raise UsageError(
                "a workload record and flags of a workload",
                why="which of them holds would be a guess",
                fix="change the record: workload.model_copy(update={...})",
            )
        return given
    names = ("global_batch", "sequence", "precision", "attention", "memory_margin", "objective")
    return read_workload(given, model=model, flags=dict(zip(names, flags, strict=True)))
