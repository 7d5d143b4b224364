"""The process groups of the plan: ranks go stage by stage, replica by replica, tensor last."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


class Mesh:
    """Tensor and data groups of this process, under the names that DeepSpeed asks an `mpu` for."""

    def __init__(self, plan: dict[str, Any]) -> None:
        degrees = plan["parallelism"]
        self.tensor, self.pipeline = degrees["tensor_parallel"], degrees["pipeline_parallel"]
        self.world, self.rank = dist.get_world_size(), dist.get_rank()
        self.data = self.world // (self.tensor * self.pipeline)
        stage = self.data * self.tensor
        self.tensor_group = self._mine(
            [range(first, first + self.tensor) for first in range(0, self.world, self.tensor)]
        )
        self.data_group = self._mine(
            [
                range(first + rank, first + stage, self.tensor)
                for first in range(0, self.world, stage)
                for rank in range(self.tensor)
            ]
        )

    def _mine(self, groups: list[range]) -> Any:
        made = [(ranks, dist.new_group(list(ranks))) for ranks in groups]
        return next(group for ranks, group in made if self.rank in ranks)

    @property
    def pipelined(self) -> bool:
        """Whether the model runs in DeepSpeed's pipeline engine."""
        return self.pipeline > 1

    @property
    def speaks(self) -> bool:
        """Whether this process reports: the first one of the last stage, which knows the loss."""
        return self.rank == self.world - self.data * self.tensor

    def get_model_parallel_rank(self) -> int:
        """Position in the tensor group."""
        return self.rank % self.tensor

    def get_model_parallel_world_size(self) -> int:
        """Ranks of the tensor group."""
        return self.tensor

    def get_model_parallel_group(self) -> Any:
        """The tensor group."""
        return self.tensor_group

    def get_data_parallel_rank(self) -> int:
        """Position in the data group."""
        return self.rank // self.tensor % self.data

    def get_data_parallel_world_size(self) -> int:
        """Ranks of the data group."""
        return self.data

    def get_data_parallel_group(self) -> Any:
        """The data group."""
        return self.data_group
