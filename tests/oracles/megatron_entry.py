"""Stands in for Megatron-LM's pretrain_gpt.py: trains the real model on CPU and gloo, on data that
is the same however the job is split.

The wheel has `megatron.training` but not the entry script. Everything of CUDA is answered for; the
model, the schedules, the optimizer and the collectives are Megatron-LM's own.
"""

from __future__ import annotations

import contextlib
import types
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import cpu_torch

cpu_torch.stub_typing()
cpu_torch.stub_triton()

import torch  # noqa: E402
from torch import Tensor  # noqa: E402
from torch.overrides import TorchFunctionMode  # noqa: E402

CPU = torch.device("cpu")


class _OnCpu(TorchFunctionMode):
    """Every tensor that is asked for on a CUDA device is made on the CPU."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        kinds: Any,
        arguments: tuple[Any, ...] = (),
        options: Mapping[str, Any] | None = None,
    ) -> Any:
        del kinds
        options = {key: _here(value) for key, value in (options or {}).items()}
        arguments = tuple(map(_here, arguments))
        answer = function(*arguments, **options)
        if function is torch.Tensor.type and len(arguments) == 1 and not options:
            # Gradient buckets are chosen by names such as torch.cuda.FloatTensor.
            return answer.replace("torch.", "torch.cuda.")
        return answer


def _here(value: object) -> object:
    if isinstance(value, torch.device) and value.type == "cuda":
        return CPU
    return CPU if isinstance(value, str) and value.partition(":")[0] == "cuda" else value


class _Stream:
    """A stream or event on which everything has already happened."""

    cuda_stream = 0

    def __init__(self, *_: object, **__: object) -> None: ...

    def __getattr__(self, name: str) -> Callable[..., None]:
        if name.startswith("__"):
            raise AttributeError(name)
        return _nothing

    def __enter__(self) -> _Stream:
        return self

    def __exit__(self, *_: object) -> None: ...


def _nothing(*_: object, **__: object) -> None: ...


def stub_cuda() -> None:
    """Answer for a CUDA device that is in truth this CPU."""
    cpu_torch.stub_device((9, 0))
    cuda: Any = torch.cuda
    zero = lambda *_, **__: 0  # noqa: E731
    answers: dict[str, Any] = {
        "is_available": lambda: True,
        "device_count": lambda: 8,
        "current_device": lambda: CPU,
        "get_device_name": lambda *_: "stub",
        "mem_get_info": lambda *_: (80 * 2**30, 80 * 2**30),
        "memory_stats": lambda *_: defaultdict(int),
        "get_rng_state": lambda *_: torch.get_rng_state(),
        "set_rng_state": lambda state, *_: torch.set_rng_state(state),
        "stream": lambda *_: contextlib.nullcontext(),
        "current_stream": _Stream,
        "default_stream": _Stream,
        "Stream": _Stream,
        "Event": _Stream,
        "nvtx": types.SimpleNamespace(range_push=_nothing, range_pop=_nothing),
    }
    for name in ("memory_allocated", "max_memory_allocated", "memory_reserved"):
        answers[name] = zero
    answers["max_memory_reserved"] = zero
    for name in ("set_device", "synchronize", "empty_cache", "reset_peak_memory_stats"):
        answers[name] = _nothing
    for name in ("manual_seed", "manual_seed_all", "ipc_collect"):
        answers[name] = _nothing
    for kind in ("Float", "Half", "BFloat16", "Long", "Int", "Byte", "Double"):
        answers[f"{kind}Tensor"] = getattr(torch, f"{kind}Tensor")
    for name, answer in answers.items():
        setattr(cuda, name, answer)
    torch.Tensor.cuda = lambda tensor, *_, **__: tensor  # type: ignore[method-assign,assignment]
    torch.nn.Module.cuda = lambda module, *_, **__: module  # type: ignore[method-assign]


class Sequences(torch.utils.data.Dataset[dict[str, Tensor]]):
    """Sequences of a learnable kind: one token, again and again."""

    def __init__(self, size: int, length: int, vocabulary: int) -> None:
        self.size, self.length, self.vocabulary = max(size, 1), length, vocabulary

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        generator = torch.Generator().manual_seed(index)
        token = torch.randint(self.vocabulary, (1,), generator=generator)
        return {"tokens": token.repeat(self.length), "labels": token.repeat(self.length)}


def datasets(sizes: list[int | None], vp_stage: int | None = None) -> tuple[Sequences, ...]:
    from megatron.training import get_args

    del vp_stage
    arguments = get_args()
    return tuple(Sequences(size or 0, arguments.seq_length, arguments.vocab_size) for size in sizes)


datasets.is_distributed = True  # type: ignore[attr-defined]


def loss(output: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    losses = output.float()
    count = torch.tensor(losses.numel(), dtype=torch.int)
    report = torch.stack([losses.detach().sum(), count.float()])
    return losses.sum(), count, {"lm loss": report}


def forward_step(data: Iterator[dict[str, Tensor]], model: Any, *_: object, **__: object) -> Any:
    batch = next(data)
    length = batch["tokens"].shape[1]
    positions = torch.arange(length).expand_as(batch["tokens"])
    mask = torch.ones(length, length, dtype=torch.bool).triu(1)[None, None]
    return model(batch["tokens"], positions, mask, labels=batch["labels"]), loss


def main() -> None:
    stub_cuda()
    import megatron.core.tensor_parallel.random as random
    import megatron.training.initialize as initialize

    cpu_torch.pretend_transformer_engine()
    initialize._compile_dependencies = _nothing
    random._get_cuda_rng_state = lambda *_, **__: torch.get_rng_state()
    random._set_cuda_rng_state = lambda state, *_, **__: torch.set_rng_state(state)
    from megatron.core.enums import ModelType
    from megatron.training import pretrain
    from megatron.training.argument_utils import (
        gpt_config_from_args,
        pretrain_cfg_container_from_args,
    )
    from megatron.training.arguments import parse_and_validate_args

    with _OnCpu():
        arguments = parse_and_validate_args()
        container = pretrain_cfg_container_from_args(arguments, gpt_config_from_args(arguments))
        pretrain(container, datasets, ModelType.encoder_or_decoder, forward_step)


if __name__ == "__main__":
    main()
