"""`hetcli plan`: search the best configuration of a cluster for a model and a workload."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated

import typer

from hetcli.cli import limits
from hetcli.cli import options as common
from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.cli.planning import given_inputs, show_plan, value_of


class Space(StrEnum):
    """Which plans are searched."""

    grid = "grid"
    free = "free"


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "plan")
    def plan(
        output: Output,
        cluster: common.ClusterOption,
        model: common.ModelOption,
        hardware: common.HardwareOption = None,
        efficiency: common.EfficiencyOption = None,
        lora: common.Lora = False,
        lora_rank: common.LoraRank = None,
        workload: common.WorkloadOption = None,
        global_batch: common.GlobalBatch = None,
        sequence: common.SequenceLength = None,
        precision: common.PrecisionOption = None,
        attention: common.AttentionOption = None,
        memory_margin: common.MemoryMargin = None,
        objective: common.ObjectiveOption = None,
        target: common.TargetOption = common.Target.megatron,
        space: Annotated[
            Space,
            typer.Option(
                "--space", help="Equal replicas (grid), or unlike pipelines mixed too (free)."
            ),
        ] = Space.grid,
        tensor_parallel: common.TensorParallel = None,
        pipeline_parallel: common.PipelineParallel = None,
        data_parallel: common.DataParallel = None,
        context_parallel: common.ContextParallel = None,
        expert_parallel: common.ExpertParallel = None,
        expert_tensor_parallel: common.ExpertTensorParallel = None,
        micro_batch: common.MicroBatch = None,
        virtual_stages: Annotated[
            int | None,
            typer.Option(
                "--virtual-stages",
                min=1,
                metavar="N",
                help="Model chunks a stage, 1 for plain 1F1B (default: the best).",
            ),
        ] = None,
        recompute: common.RecomputeOption = None,
        zero_stage: common.ZeroStage = None,
        tokens: limits.Tokens = None,
        max_cost_per_step: limits.MaxCost = None,
        min_throughput: limits.MinThroughput = None,
        max_nodes: limits.MaxNodes = None,
        quota: limits.QuotaOption = None,
        pareto: Annotated[
            bool, typer.Option("--pareto", help="Also find the front of time against money.")
        ] = False,
        compare: Annotated[
            bool | None,
            typer.Option(
                "--compare/--no-compare",
                help="Say what every restriction costs (default: up to 64 devices).",
                show_default=False,
            ),
        ] = None,
        top: Annotated[int, typer.Option("--top", min=1, max=100, help="Plans to list.")] = 5,
        time_limit: Annotated[
            float | None,
            typer.Option(
                "--time-limit",
                min=0.1,
                metavar="SECONDS",
                help="Stop then, with the best plan so far; so does Ctrl-C.",
            ),
        ] = None,
        out: common.Out = None,
    ) -> None:
        """Search the best parallel configuration and say what it will cost.

        A degree that is given is kept; the others are searched.
        """
        from hetcli.search import PlanOptions
        from hetcli.search import plan as search

        inputs = given_inputs(
            cluster=cluster,
            hardware=hardware,
            efficiency=efficiency,
            model=model,
            lora_rank=lora_rank or (common.LORA_RANK if lora else None),
            workload=workload,
            global_batch=global_batch,
            sequence=sequence,
            precision=precision,
            attention=attention,
            memory_margin=memory_margin,
            objective=objective,
            tokens=limits.tokens_of(tokens),
        )
        options = PlanOptions(
            target=target.value,
            space=space.value,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            data_parallel=data_parallel,
            context_parallel=context_parallel,
            expert_parallel=expert_parallel,
            expert_tensor_parallel=expert_tensor_parallel,
            micro_batch_size=micro_batch,
            virtual_stages=virtual_stages,
            recompute=value_of(recompute),
            zero_stage=zero_stage,
            pareto=pareto,
            compare=compare,
            top=top,
            time_limit_s=time_limit,
            **limits.given_limits(
                min_throughput=min_throughput,
                quota=quota,
                max_cost_per_step=max_cost_per_step,
                max_nodes=max_nodes,
            ),
        )
        show_plan(output, search(options=options, **inputs), out)
