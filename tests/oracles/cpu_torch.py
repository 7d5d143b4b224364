"""Make Megatron-LM importable and judgeable on a machine with neither CUDA, Triton nor TE."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
import types
import typing
from collections.abc import Callable
from typing import Any


class _Inert:
    """Answers every use: an attribute, a call, an index, a decorator, a base class."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        decorated = len(arguments) == 1 and callable(arguments[0]) and not options
        return arguments[0] if decorated else self

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _Inert()

    def __getitem__(self, key: object) -> Any:
        return self

    def __or__(self, other: object) -> Any:
        return self

    __ror__ = __or__

    def __mro_entries__(self, bases: object) -> tuple[type, ...]:
        return (object,)


def inert_module(name: str) -> types.ModuleType:
    module = types.ModuleType(name)
    module.__path__ = []  # type: ignore[attr-defined]
    module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    module.__version__ = "0.0.0"  # type: ignore[attr-defined]

    def attribute(key: str) -> Any:
        if key.startswith("__"):
            raise AttributeError(key)
        return _Inert()

    module.__getattr__ = attribute  # type: ignore[method-assign]
    return module


def stub_triton() -> None:
    """Put an inert Triton in place of a missing one, after torch has seen that it is missing."""
    if importlib.util.find_spec("triton") is not None:
        return
    # torch looks for Triton when these are imported, and would believe in the stub.
    import torch._inductor.compile_fx
    import torch._inductor.standalone_compile  # noqa: F401

    names = ["triton"]
    names += [f"triton.{part}" for part in ("language", "runtime", "compiler", "testing")]
    names += [f"triton.language.{part}" for part in ("extra", "extra.cuda", "extra.libdevice")]
    for name in names:
        sys.modules[name] = inert_module(name)
    for name in names[1:]:
        parent, _, child = name.rpartition(".")
        setattr(sys.modules[parent], child, sys.modules[name])


def stub_typing() -> None:
    """`typing.override` came with Python 3.12, which the wheel is built for."""
    if not hasattr(typing, "override"):
        import typing_extensions

        typing.override = typing_extensions.override  # type: ignore[attr-defined]


def stub_device(capability: tuple[int, int], memory: int = 80 * 2**30) -> None:
    """Answer for a CUDA device of the given compute capability."""
    import torch

    properties = types.SimpleNamespace(
        major=capability[0],
        minor=capability[1],
        name="stub",
        total_memory=memory,
        multi_processor_count=132,
    )
    answers: dict[str, Callable[..., object]] = {
        "get_device_properties": lambda *_: properties,
        "get_device_capability": lambda *_: capability,
        "current_device": lambda: 0,
    }
    for name, answer in answers.items():
        setattr(torch.cuda, name, answer)


def pretend_transformer_engine() -> None:
    """Let Megatron-LM believe in a recent Transformer Engine where it only asks for its version."""
    import megatron.core.models.common.embeddings.rope_utils as rope
    import megatron.core.utils as utils
    from packaging.version import Version

    utils._te_version = Version("2.9.0")
    for name in ("fused_apply_rotary_pos_emb", "fused_apply_rotary_pos_emb_thd"):
        if getattr(rope, name, None) is None:
            setattr(rope, name, lambda *_, **__: None)
