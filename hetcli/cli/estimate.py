"""`hetcli estimate`: the same prediction for one configuration that the user gives."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from hetcli.cli import options as common
from hetcli.cli.command import command
from hetcli.cli.output import Output
from hetcli.cli.planning import given_inputs, show_plan, value_of
from hetcli.errors import ExitCode

if TYPE_CHECKING:
    from hetcli.spec.cluster import Cluster


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @command(app, "estimate")
    def estimate(
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
        target: common.TargetOption = common.Target.megatron,
        tensor_parallel: common.TensorParallel = None,
        pipeline_parallel: common.PipelineParallel = None,
        data_parallel: common.DataParallel = None,
        context_parallel: common.ContextParallel = None,
        expert_parallel: common.ExpertParallel = None,
        expert_tensor_parallel: common.ExpertTensorParallel = None,
        micro_batch: common.MicroBatch = None,
        stage_layers: Annotated[
            str | None,
            typer.Option(
                "--stage-layers",
                metavar="A,B,..",
                help="Layers of each stage, first stage first (default: as even as possible).",
            ),
        ] = None,
        stage_groups: Annotated[
            str | None,
            typer.Option(
                "--stage-groups",
                metavar="NAME,NAME,..",
                help="Node group of each stage, first stage first (default: file order).",
            ),
        ] = None,
        per_gpu_batch: Annotated[
            str | None,
            typer.Option(
                "--per-gpu-batch",
                metavar="NAME=N,..",
                help="Sequences of a micro-batch on each rank of a node group or GPU type; without "
                "--gbs they make up the global batch.",
            ),
        ] = None,
        virtual_stages: Annotated[
            int, typer.Option("--virtual-stages", min=1, metavar="N", help="Model chunks a stage.")
        ] = 1,
        schedule: common.ScheduleOption = None,
        recompute: common.RecomputeOption = None,
        zero_stage: common.ZeroStage = None,
        offload: common.OffloadOption = None,
        sequence_parallel: Annotated[
            bool | None, typer.Option("--sequence-parallel/--no-sequence-parallel")
        ] = None,
        out: common.Out = None,
    ) -> ExitCode:
        """Predict the time, memory and money of one configuration.

        Exit code 1 says that it does not fit; the prediction is printed all the same.
        """
        from hetcli.search import EstimateRequest
        from hetcli.search import estimate as predict
        from hetcli.search.unequal import sequences_of

        def own_batch(cluster: Cluster) -> int | None:
            if per_gpu_batch is None:
                return None
            return sequences_of(
                cluster, per_gpu_batch, tensor=tensor_parallel or 1, context=context_parallel or 1
            )

        inputs = given_inputs(
            own_batch=own_batch,
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
        )
        request = EstimateRequest(
            target=target.value,
            tensor_parallel=tensor_parallel,
            pipeline_parallel=pipeline_parallel,
            data_parallel=data_parallel,
            context_parallel=context_parallel,
            expert_parallel=expert_parallel,
            expert_tensor_parallel=expert_tensor_parallel,
            micro_batch_size=micro_batch,
            stage_layers=stage_layers,
            stage_groups=stage_groups,
            per_gpu_batch=per_gpu_batch,
            virtual_stages=virtual_stages,
            schedule=value_of(schedule),
            recompute=value_of(recompute),
            zero_stage=zero_stage,
            offload=value_of(offload),
            sequence_parallel=sequence_parallel,
        )
        result = predict(request=request, **inputs)
        show_plan(output, result, out)
        return ExitCode.YES if result.predicted.fits else ExitCode.NO
