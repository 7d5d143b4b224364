"""Ask real Megatron-LM and the real torchrun parser: one JSON question a line, one answer a line.

Importing takes seconds, so it is done once; Megatron-LM answers in a fork, because it keeps its
state in globals. Usage: megatron_worker.py DIRECTORY_WITH_MEGATRON
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import io
import json
import os
import sys
import warnings
from argparse import ArgumentParser, Namespace
from typing import Any

import cpu_torch


def load(root: str) -> None:
    cpu_torch.stub_typing()
    cpu_torch.stub_triton()
    cpu_torch.stub_device((9, 0))
    sys.path.insert(0, root)
    import megatron.core.transformer.transformer_block
    import megatron.training.arguments
    import torch.distributed.run  # noqa: F401

    cpu_torch.pretend_transformer_engine()
    # The parser reads the source of its classes for the help of every option, which is most of the
    # time that a question takes; the forks inherit what was read once.
    inspect.getsource = functools.cache(inspect.getsource)  # type: ignore[assignment]
    megatron.training.arguments.add_megatron_arguments(ArgumentParser())


def torchrun(question: dict[str, Any]) -> dict[str, Any]:
    from torch.distributed.run import config_from_args, get_args_parser

    arguments = get_args_parser().parse_args(question["argv"])
    config, _, _ = config_from_args(arguments)
    return {
        "nodes": config.max_nodes,
        "min_nodes": config.min_nodes,
        "node_rank": config.node_rank if hasattr(config, "node_rank") else arguments.node_rank,
        "processes": config.nproc_per_node,
        "backend": config.rdzv_backend,
        "endpoint": config.rdzv_endpoint,
        "script": arguments.training_script,
        "arguments": arguments.training_script_args,
    }


def accept(question: dict[str, Any]) -> dict[str, Any]:
    """Everything up to the first tensor: parser, validators, config, micro-batches, ranks."""
    from megatron.training.arguments import (
        core_transformer_config_from_args,
        parse_args,
        validate_args,
    )

    cpu_torch.stub_device(tuple(question.get("capability", (9, 0))))
    os.environ.pop("CUDA_DEVICE_MAX_CONNECTIONS", None)
    os.environ.update(question["environment"])
    os.environ.update(WORLD_SIZE=str(question["world"]), RANK="0", LOCAL_RANK="0")
    sys.argv = ["pretrain_gpt.py", *question["arguments"]]
    arguments = parse_args()
    validate_args(arguments, {"tokenizer_type": "GPT2BPETokenizer"})
    config = core_transformer_config_from_args(arguments)
    return {
        "data_parallel": arguments.data_parallel_size,
        "micro_batches": _micro_batches(arguments),
        "layers": _layers(config),
        "groups": _groups(arguments),
        "arguments": {
            key: value
            for key, value in vars(arguments).items()
            if isinstance(value, str | int | float | bool | list | tuple | None)
        },
        "config": {
            "activation": getattr(config.activation_func, "__name__", ""),
            "gated": config.gated_linear_unit,
            "query_groups": config.num_query_groups,
            "bias": config.add_bias_linear,
            "qkv_bias": config.add_qkv_bias,
            "class": type(config).__name__,
            "experts": config.num_moe_experts,
        },
    }


def _micro_batches(arguments: Namespace) -> int:
    from megatron.core.num_microbatches_calculator import (
        get_num_microbatches,
        init_num_microbatches_calculator,
    )

    init_num_microbatches_calculator(
        rank=0,
        rampup_batch_size=arguments.rampup_batch_size,
        global_batch_size=arguments.global_batch_size,
        micro_batch_size=arguments.micro_batch_size,
        data_parallel_size=arguments.data_parallel_size,
        decrease_batch_size_if_needed=arguments.decrease_batch_size_if_needed,
    )
    return int(get_num_microbatches())


def _layers(config: Any) -> list[list[str]]:
    """The kinds of layers of every chunk of every pipeline rank, in the layout's letters."""
    from megatron.core.transformer.transformer_block import get_num_layers_to_build

    if config.pipeline_model_parallel_layout is None:
        count = get_num_layers_to_build(config, vp_stage=None, pp_rank=0)
        return [["E" + "t" * count + "m" * (config.mtp_num_layers or 0) + "L"]]
    letters = {"embedding": "E", "decoder": "t", "mtp": "m", "loss": "L"}
    return [
        ["".join(letters[layer.name] for layer in chunk) for chunk in rank]
        for rank in config.pipeline_model_parallel_layout.layout
    ]


def _groups(arguments: Namespace) -> dict[str, list[list[int]]]:
    from megatron.core.parallel_state import RankGenerator

    last = "pp-dp" if arguments.use_tp_pp_dp_mapping else "dp-pp"
    ranks = RankGenerator(
        tp=arguments.tensor_model_parallel_size,
        ep=1,
        dp=arguments.data_parallel_size,
        pp=arguments.pipeline_model_parallel_size,
        cp=arguments.context_parallel_size,
        order=f"tp-cp-ep-{last}",
    )
    mesh = (
        arguments.expert_tensor_parallel_size
        * arguments.expert_model_parallel_size
        * arguments.pipeline_model_parallel_size
    )
    if arguments.num_experts and arguments.world_size % mesh:
        raise AssertionError(f"world {arguments.world_size} is no multiple of etp x ep x pp {mesh}")
    return {name: ranks.get_ranks(name) for name in ("tp", "cp", "dp", "pp")}


QUESTIONS = {"torchrun": torchrun, "accept": accept}


def answer(question: dict[str, Any]) -> dict[str, Any]:
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            return {"ok": True, **QUESTIONS[question["kind"]](question)}
    except SystemExit:
        return {"ok": False, "error": said.getvalue().strip().splitlines()[-1]}
    except Exception as error:  # The framework's own words are the answer.
        return {"ok": False, "error": f"{type(error).__name__}: {error}"}


def forked(question: dict[str, Any]) -> bytes:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        with os.fdopen(writer, "wb") as pipe:
            pipe.write(json.dumps(answer(question)).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        result = pipe.read()
    os.waitpid(child, 0)
    return result or b'{"ok": false, "error": "the process died"}'


def main() -> None:
    warnings.simplefilter("ignore")
    out = os.fdopen(os.dup(1), "wb")
    # What the frameworks print must not be taken for an answer.
    os.dup2(2, 1)
    load(sys.argv[1])
    out.write(b'{"ok": true}\n')
    out.flush()
    for line in sys.stdin:
        question = json.loads(line)
        # torchrun's parser keeps nothing.
        alone = question["kind"] == "torchrun"
        found = json.dumps(answer(question)).encode() if alone else forked(question)
        out.write(found.replace(b"\n", b" ") + b"\n")
        out.flush()


if __name__ == "__main__":
    main()
