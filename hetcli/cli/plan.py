"""`hetcli plan`: search the best configuration of a cluster for a model and a workload."""

from __future__ import annotations

from typing import Annotated

import typer

from hetcli.cli.command import command
from hetcli.cli.options import (
    Attention,
    ClusterOption,
    GlobalBatch,
    MemoryMargin,
    ModelOption,
    Objective,
    Precision,
    Recompute,
    SequenceLength,
    Target,
    WorkloadOption,
)
from hetcli.cli.output import Output


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "plan")
    def plan(
        output: Output,
        cluster: ClusterOption,
        model: ModelOption,
        workload: WorkloadOption = None,
        global_batch: GlobalBatch = None,
        sequence: SequenceLength = None,
        precision: Annotated[Precision | None, typer.Option("--precision")] = None,
        attention: Annotated[Attention | None, typer.Option("--attention")] = None,
        memory_margin: MemoryMargin = None,
        objective: Annotated[Objective | None, typer.Option("--objective")] = None,
        target: Annotated[
            Target, typer.Option("--target", help="The framework that must run it.")
        ] = Target.megatron,
        tensor_parallel: Annotated[
            int | None, typer.Option("--tensor-parallel", "--tp", min=1, help="Fix this degree.")
        ] = None,
        pipeline_parallel: Annotated[
            int | None, typer.Option("--pipeline-parallel", "--pp", min=1, help="Fix this degree.")
        ] = None,
        data_parallel: Annotated[
            int | None, typer.Option("--data-parallel", "--dp", min=1, help="Fix this degree.")
        ] = None,
        context_parallel: Annotated[
            int | None, typer.Option("--context-parallel", "--cp", min=1, help="Fix this degree.")
        ] = None,
        expert_parallel: Annotated[
            int | None, typer.Option("--expert-parallel", "--ep", min=1, help="Fix this degree.")
        ] = None,
        expert_tensor_parallel: Annotated[
            int | None,
            typer.Option("--expert-tensor-parallel", "--etp", min=1, help="Fix this degree."),
        ] = None,
        micro_batch: Annotated[
            int | None, typer.Option("--micro-batch", "--mbs", min=1, help="Fix this size.")
        ] = None,
        recompute: Annotated[Recompute | None, typer.Option("--recompute")] = None,
        zero_stage: Annotated[
            int | None,
            typer.Option("--zero", min=0, max=3, help="Fix the ZeRO stage (DeepSpeed)."),
        ] = None,
        top: Annotated[int, typer.Option("--top", min=1, max=100, help="Plans to list.")] = 5,
        out: Annotated[
            str | None, typer.Option("-o", "--output", metavar="FILE", help="Write plan.json here.")
        ] = None,
    ) -> None:
        """Search the best parallel configuration and say what it will cost."""
        from hetcli.catalog.inputs import read_cluster, read_model, read_workload
        from hetcli.report.terminal import plan_view
        from hetcli.search.options import PlanOptions
        from hetcli.search.planner import plan as search

        described_model = read_model(model)
        result = search(
            cluster=read_cluster(cluster),
            model=described_model,
            workload=read_workload(
                workload,
                model=described_model,
                global_batch=global_batch,
                sequence=sequence,
                precision=precision and precision.value,
                attention=attention and attention.value,
                memory_margin=memory_margin,
                objective=objective and objective.value,
            ),
            options=PlanOptions(
                target=target.value,
                tensor_parallel=tensor_parallel,
                pipeline_parallel=pipeline_parallel,
                data_parallel=data_parallel,
                context_parallel=context_parallel,
                expert_parallel=expert_parallel,
                expert_tensor_parallel=expert_tensor_parallel,
                micro_batch_size=micro_batch,
                recompute=recompute and recompute.value,
                zero_stage=zero_stage,
                top=top,
            ),
        )
        if out is not None:
            output.save(out, result)
            if out == "-":
                return
        output.result(result, *plan_view(result, verbose=output.verbose))
