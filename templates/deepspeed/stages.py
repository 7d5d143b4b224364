"""The model as one module, or as the planned stages of DeepSpeed's pipeline."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import deepspeed
from deepspeed.pipe import LayerSpec, PipelineModule, TiedLayerSpec
from deepspeed.runtime.pipe.topology import PipeDataParallelTopology, PipeModelDataParallelTopology
from layers import Block, Embedding, FinalNorm, Head, Loss, Words, tied_logits
from mesh import Mesh
from parallel import Setup, train_adapters_alone
from torch import Tensor, nn

Plan = dict[str, Any]
# Layers whose class name starts like this open a stage; `partition_method` looks for them.
MARK = "StageStart"


class Whole(nn.Module):
    """All layers in one process."""

    def __init__(self, setup: Setup) -> None:
        super().__init__()
        self.words = Words(setup)
        self.embedding = Embedding(setup)
        self.blocks = nn.ModuleList(
            Block(setup, index, layer) for index, layer in enumerate(each_layer(setup.model))
        )
        self.tied = setup.model["tied_embeddings"]
        self.head = FinalNorm(setup) if self.tied else Head(setup)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = self.embedding(self.words(tokens))
        for block in self.blocks:
            hidden = block(hidden)
        hidden = self.head(hidden)
        return tied_logits(self.words, hidden) if self.tied else hidden


def each_layer(model: dict[str, Any]) -> list[dict[str, Any]]:
    """The decoder layers in order."""
    return [run["layer"] for run in model["layers"] for _ in range(run["count"])]


def recomputed(plan: Plan) -> list[str]:
    """How every layer recomputes: with a number, the first ones of its stage."""
    kinds = []
    for stage in plan["stages"]:
        count = stage["recompute_layers"]
        for position in range(stage["layers"]):
            kept = stage["recompute"] == "full" and count is not None and position >= count
            kinds.append("none" if kept else stage["recompute"])
    return kinds


def marked(kind: type[nn.Module]) -> type[nn.Module]:
    """The same layer under a name that opens a stage."""
    return type(f"{MARK}{kind.__name__}", (kind,), {})


def specifications(plan: Plan, setup: Setup) -> list[LayerSpec]:
    """The layers of the whole pipeline; the first one of every stage is marked."""
    model = setup.model
    starts = {stage["first_layer"] for stage in plan["stages"][1:] if stage["layers"]}
    # A last stage without decoder layers begins with the head.
    bare = plan["stages"][-1]["layers"] == 0
    tied = model["tied_embeddings"]
    head = FinalNorm if tied else Head
    words = (
        TiedLayerSpec("words", marked(Words), setup) if tied else LayerSpec(marked(Words), setup)
    )
    layers = [words, LayerSpec(Embedding, setup)]
    for index, layer in enumerate(each_layer(model)):
        layers.append(LayerSpec(marked(Block) if index in starts else Block, setup, index, layer))
    layers.append(LayerSpec(marked(head) if bare else head, setup))
    if tied:
        layers.append(TiedLayerSpec("words", Words, setup, forward_fn=tied_logits))
    return layers


def trained(model: nn.Module, setup: Setup) -> nn.Module:
    """The model with what is not trained frozen."""
    if setup.adapter_rank:
        train_adapters_alone(model)
    return model


def build(plan: Plan, config: dict[str, Any], mesh: Mesh) -> tuple[nn.Module, Loss]:
    """The model for this process and the loss of its logits."""
    setup = Setup(
        model=plan["inputs"]["model"],
        recompute=recomputed(plan),
        attention=plan["parallelism"]["attention"],
        size=mesh.tensor,
        rank=mesh.get_model_parallel_rank(),
        group=mesh.tensor_group,
    )
    loss = Loss(setup)
    if not mesh.pipelined:
        sharded = config["zero_optimization"]["stage"] == 3
        with (
            deepspeed.zero.Init(config_dict_or_path=config, mpu=mesh) if sharded else nullcontext()
        ):
            return trained(Whole(setup), setup), loss
    topology = PipeDataParallelTopology(num_pp=mesh.pipeline, num_dp=mesh.data)
    if mesh.tensor > 1:
        topology = PipeModelDataParallelTopology(
            num_pp=mesh.pipeline, num_mp=mesh.tensor, num_dp=mesh.data
        )
    pipeline = PipelineModule(
        layers=specifications(plan, setup),
        topology=topology,
        loss_fn=loss,
        partition_method=f"type:^{MARK}",
    )
    return trained(pipeline, setup), loss
