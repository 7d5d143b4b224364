"""A plan as a run of DeepSpeed with the trainer that hetcli ships."""

from __future__ import annotations

from typing import Final

from hetcli.errors import ConfigurationError, InfeasibleError
from hetcli.export.deepspeed.config import config_text
from hetcli.export.launch import LaunchFile
from hetcli.export.placement import DEFAULT_ORDER, Placement, place
from hetcli.export.planned import Planned, configuration
from hetcli.export.program import Program, Variable
from hetcli.export.refuse import refuse_spread, unsupported
from hetcli.export.templating import template_text
from hetcli.perf import rules
from hetcli.spec.model.architecture import MoeFeedForward

__all__ = ["DEFAULT_VERSION", "VERSIONS", "program"]

# Releases that read the configuration and train with the trainer in the tests. Not 0.18: with a
# pipeline, every stage that gradients pass divides them by the accumulation once more (a hook in
# DeepSpeedEngine that 0.19 no longer has).
VERSIONS: Final = ("0.19",)
DEFAULT_VERSION: Final = "0.19"
TARGET: Final = "deepspeed"
TRAINER: Final = (
    "train.py",
    "stages.py",
    "layers.py",
    "attention.py",
    "positions.py",
    "parallel.py",
    "mesh.py",
    "data.py",
)


def program(planned: Planned, version: str) -> tuple[Program, Placement]:
    """What every rank runs, and where.

    Raises:
        UnsupportedByTargetError: DeepSpeed or the trainer cannot run the plan.
    """
    _check(planned)
    placement = _place(planned)
    plan = planned.plan
    workload = plan.inputs.workload
    on_cpu = planned.vendors == ("cpu",)
    return (
        Program(
            template="deepspeed/program.sh.j2",
            variables=(Variable("DS_ACCELERATOR", "cpu", "the devices are CPUs"),)
            if on_cpu
            else (),
            files=(
                LaunchFile("ds_config.json", config_text(plan.parallelism, workload)),
                *(LaunchFile(name, template_text(f"deepspeed/{name}")) for name in TRAINER),
            ),
            settings={"deepspeed_version": version, "releases": [version], "steps": planned.steps},
            user_variables=("DATA_PATH", "CHECKPOINT_DIR", "SAVE_INTERVAL", "TRAIN_STEPS"),
            steps_before=(
                "Optional: `DATA_PATH` (a NumPy array of token numbers; random tokens otherwise), "
                "`CHECKPOINT_DIR`, `TRAIN_STEPS`; learning rate and optimizer are in "
                "`ds_config.json`.",
            ),
            notes=_notes(planned),
        ),
        placement,
    )


def _check(planned: Planned) -> None:
    rules.check_model("deepspeed", planned.model, planned.sequence)
    degrees, plan = planned.plan.parallelism, planned.plan
    unlike = {(stage.pipeline, stage.tensor_parallel, len(stage.replicas)) for stage in plan.stages}
    members = [replica for stage in plan.stages for replica in stage.replicas]
    unlike_sizes = len({replica.micro_batch_size for replica in members}) > 1
    for wrong, what, why, nearest, flags in (
        (
            len(unlike) > 1,
            "replicas or stages of different shapes",
            "ranks form one mesh of pipeline x data x tensor",
            "a plan of the grid space",
            "",
        ),
        (
            len({replica.micro_batches for replica in members}) > 1,
            "unequal numbers of micro-batches",
            "every rank accumulates over as many",
            "micro-batches of unequal size instead",
            "",
        ),
        (
            unlike_sizes and degrees.pipeline_parallel > 1,
            "unequal micro-batches in a pipeline",
            "its pipeline engine takes tensors of one shape and weighs all replicas the same",
            "equal micro-batches, or no pipeline",
            "--pp 1",
        ),
        (
            degrees.pipeline_parallel > 1 and degrees.schedule != "1f1b",
            f"the {degrees.schedule} schedule",
            "its pipeline engine runs 1F1B",
            "the 1f1b schedule",
            "--schedule 1f1b",
        ),
        (
            any(stage.layers == 0 for stage in plan.stages[1:-1]),
            "a stage without layers",
            "a stage begins with a layer of its own",
            "stages of at least one layer; only the last may hold the head alone",
            "",
        ),
    ):
        if wrong:
            raise unsupported(TARGET, what, why=why, nearest=nearest, flags=flags)
    try:
        rules.check(configuration(plan, "deepspeed"), planned.model, planned.hardware)
    except (ConfigurationError, InfeasibleError) as error:
        raise unsupported(TARGET, error.what, why=error.why, nearest=error.fix) from error


def _place(planned: Planned) -> Placement:
    placement = place(planned.plan, (DEFAULT_ORDER,))
    if placement is None:
        raise unsupported(
            TARGET,
            "this placement: a node holds ranks that do not follow each other",
            why="launchers number processes node by node, and ranks are stage by stage",
            nearest="whole stages on consecutive nodes",
        )
    refuse_spread(TARGET, planned.plan)
    return placement


def _notes(planned: Planned) -> tuple[str, ...]:
    notes = [*planned.vendor_notes]
    sizes = [replica.micro_batch_size for replica in planned.plan.stages[0].replicas]
    if len(set(sizes)) > 1:
        notes.append(
            f"The replicas read unequal micro-batches: {', '.join(map(str, sizes))} sequences. "
            "DeepSpeed cannot be told so: train.py weighs the loss of each by its size, which "
            "gives the update of the whole batch, and ds_config.json holds a nominal micro-batch."
        )
    balanced = all(
        not isinstance(run.layer.feed_forward, MoeFeedForward) for run in planned.model.layers
    )
    if not balanced:
        notes.append(
            "The trainer does not balance experts: it is made to be timed, not to train to the end."
        )
    return tuple(notes)
