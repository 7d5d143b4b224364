"""Bytes that a layer keeps from its forward for its backward pass, for one micro-batch.

The terms are those of Korthikanti et al., arXiv 2205.05198, section 4, written out for the tensors
that the layer really has: for a GPT layer with dropout they sum to its equations 1 to 4,
s·b·h(10 + 24/t + 5·a·s/(h·t)), and with sequence parallelism and selective recomputation to
34·s·b·h/t (equation 6). Grouped queries shorten keys and values, a gated feed-forward keeps both
halves of its first product, a fused attention kernel keeps one fp32 number a row instead of the
scores (arXiv 2307.08691, section 3.1), and an expert layer keeps its tokens as often as they are
routed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache

from hetcli.perf.configuration import Shape
from hetcli.perf.memory.constants import constant
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    Model,
    MoeFeedForward,
)
from hetcli.spec.model.parameters import adapted_matrices

__all__ = [
    "LayerActivations",
    "boundary_bytes",
    "element_bytes",
    "layer_activation_bytes",
    "layer_activations",
    "prediction_activations",
    "trains_with_dropout",
]


@dataclass(frozen=True, slots=True)
class LayerActivations:
    """Bytes of one micro-batch in one layer on one device.

    `kept` stays from forward to backward; `working` comes on top of it while the layer's backward
    pass runs: what it computes again, and the largest gradients that live at once.
    """

    kept: int
    working: int


def element_bytes(shape: Shape) -> int:
    """Bytes of an activation element: 4 in fp32, else 2; fp8 keeps bf16 between its products."""
    return 4 if shape.precision == "fp32" else 2


def matmul_input_bytes(shape: Shape) -> int:
    """Bytes of an element that is kept only as the input of a matrix product."""
    return 1 if shape.precision == "fp8" else element_bytes(shape)


def tokens(shape: Shape) -> float:
    """Tokens of one micro-batch on one context-parallel rank."""
    return shape.micro_batch_size * shape.sequence / shape.context_parallel


def sequence_ways(shape: Shape) -> int:
    """By how much sequence parallelism divides what tensor parallelism leaves whole."""
    return shape.tensor_parallel if shape.sequence_parallel else 1


def trains_with_dropout(model: Model) -> bool:
    """Whether dropout masks are kept: models with LayerNorm, as Megatron-LM's defaults train them.

    Those with RMSNorm or squared ReLU are trained without dropout by their authors (Llama,
    arXiv 2302.13971; Nemotron-4, arXiv 2402.16819).
    """
    if model.norm.kind != "layernorm":
        return False
    blocks = (run.layer.feed_forward for run in model.layers)
    return all(block is None or block.activation != "relu_squared" for block in blocks)


def boundary_bytes(model: Model, shape: Shape) -> int:
    """The hidden states that one layer hands to the next, as a rank keeps or sends them."""
    return math.ceil(
        tokens(shape) * model.hidden_size * element_bytes(shape) / sequence_ways(shape)
    )


def layer_activations(
    layer: Layer, model: Model, shape: Shape, *, dropout: bool | None = None
) -> LayerActivations:
    """What `layer` keeps and works with under `shape.recompute`, bytes of one micro-batch.

    `dropout` None asks `trains_with_dropout`.
    """
    if dropout is None:
        dropout = trains_with_dropout(model)
    found = _layer_activations(layer, model.hidden_size, shape, dropout)
    if model.adapters is None:
        return found
    pairs = len(adapted_matrices(layer, model.hidden_size))
    # What lies between the two matrices of every pair.
    between = tokens(shape) * pairs * model.adapters.rank * element_bytes(shape)
    if shape.recompute == "full":
        return replace(found, working=math.ceil(found.working + between))
    return replace(found, kept=math.ceil(found.kept + between))


def layer_activation_bytes(
    layer: Layer, model: Model, shape: Shape, *, dropout: bool | None = None
) -> int:
    """Bytes that one micro-batch in flight keeps of `layer` under `shape.recompute`."""
    return layer_activations(layer, model, shape, dropout=dropout).kept


def prediction_activations(model: Model, shape: Shape) -> LayerActivations:
    """What all multi-token-prediction layers keep, and what one of them works with.

    Each is a copy of the last layer behind two norms and a projection of their joined outputs, and
    before a norm of its own (DeepSeek-V3, arXiv 2412.19437, section 2.2): six hidden states more.
    """
    if not model.prediction_layers:
        return LayerActivations(0, 0)
    layer = layer_activations(model.layers[-1].layer, model, replace(shape, recompute="none"))
    kept = layer.kept + 6 * boundary_bytes(model, shape)
    return LayerActivations(model.prediction_layers * kept, layer.working)


@lru_cache(maxsize=16384)
def _layer_activations(layer: Layer, hidden: int, shape: Shape, dropout: bool) -> LayerActivations:
    core = _core(layer, shape, dropout)
    whole = _branches(layer, hidden, shape, dropout) + _mixer(layer, shape)
    whole += _feed_forward(layer, hidden, shape)
    gradients = _gradients(layer, hidden, shape)
    match shape.recompute:
        case "none":
            kept, again = whole + core, 0.0
        case "selective":
            kept, again = whole, core
        case "full":
            kept = tokens(shape) * hidden * element_bytes(shape) / sequence_ways(shape)
            again = whole + core - kept
    return LayerActivations(math.ceil(kept), math.ceil(again + gradients))


def _branches(layer: Layer, hidden: int, shape: Shape, dropout: bool) -> float:
    """Inputs of the norms, of the sublayers behind them, and the masks of their dropouts."""
    sublayers = (layer.attention is not None) + (layer.feed_forward is not None)
    shared = layer.parallel and layer.norms == 1
    inputs = 1 if shared else sublayers
    element = layer.norms * element_bytes(shape) + inputs * matmul_input_bytes(shape)
    if dropout:
        element += 1 if layer.parallel else sublayers
    return tokens(shape) * hidden * element / sequence_ways(shape)


def _mixer(layer: Layer, shape: Shape) -> float:
    """Queries, keys, values and the attended values: what every attention kernel keeps."""
    match layer.attention:
        case GroupedQueryAttention() as attention:
            return _grouped_query(attention, shape)
        case LatentAttention() as attention:
            return _latent(attention, shape)
        case None:
            return 0.0


def _grouped_query(attention: GroupedQueryAttention, shape: Shape) -> float:
    ways = shape.tensor_parallel
    query = attention.heads * attention.head_dim / ways
    # A rank keeps at least one group; with fewer groups than ranks they are copied.
    keys = 2 * max(attention.kv_heads / ways, 1) * attention.head_dim
    if attention.query_key_norm != "none":
        keys += keys / 2 + query
    if shape.kernel == "unfused" and attention.kv_heads != attention.heads:
        # Unfused kernels copy a group's keys and values for each of its heads.
        keys += 2 * query
    return tokens(shape) * ((query + keys) * element_bytes(shape) + query * _attended_bytes(shape))


def _attended_bytes(shape: Shape) -> int:
    """The attended values are kept by the kernel and as the input of the output projection."""
    return element_bytes(shape) + (1 if shape.precision == "fp8" else 0)


def _latent(attention: LatentAttention, shape: Shape) -> float:
    """DeepSeek-V2, arXiv 2405.04434, equations 9 to 19, as Megatron-LM runs it.

    The latent states before and after their norms are cut by the sequence; the kernel reads
    queries and keys that were put together from two parts, while the up-projection's own output
    stays alive behind the values.
    """
    element, inputs = element_bytes(shape), matmul_input_bytes(shape)
    latent = (attention.query_rank or 0) + attention.kv_rank
    compressed = (latent + attention.head_dim_rope) * element + latent * inputs
    head = attention.head_dim_without_rope + attention.head_dim_rope
    up_projected = attention.head_dim_without_rope + attention.value_head_dim
    heads = attention.heads / shape.tensor_parallel
    expanded = heads * (
        (2 * head + up_projected) * element + attention.value_head_dim * _attended_bytes(shape)
    )
    return tokens(shape) * (compressed / sequence_ways(shape) + expanded)


def _core(layer: Layer, shape: Shape, dropout: bool) -> float:
    """What the attention kernel keeps: scores; when fused one fp32 (4 bytes) log-sum a row."""
    if layer.attention is None:
        return 0.0
    heads = layer.attention.heads / shape.tensor_parallel
    if shape.kernel == "flash":
        return 4 * tokens(shape) * heads
    scores = heads * tokens(shape) * shape.sequence
    element = element_bytes(shape)
    # The softmax; with dropout also its mask and its output (arXiv 2205.05198, section 4.1).
    return scores * (2 * element + 1 if dropout else element)


def _feed_forward(layer: Layer, hidden: int, shape: Shape) -> float:
    match layer.feed_forward:
        case DenseFeedForward() as block:
            size = block.size / shape.tensor_parallel
            return tokens(shape) * _products(size, block.gated, shape)
        case MoeFeedForward() as block:
            return _experts(block, hidden, shape)
        case None:
            return 0.0


def _products(size: float, gated: bool, shape: Shape) -> float:
    """Bytes a token: the first product, kept for the activation, and the second one's input."""
    return size * ((2 if gated else 1) * element_bytes(shape) + matmul_input_bytes(shape))


def routed_tokens(block: MoeFeedForward, shape: Shape) -> float:
    """Tokens that the experts of one device receive, on the most loaded device.

    Every rank sends its tokens `top_k` times; expert parallelism spreads them, expert-tensor
    parallelism gives all of them to each of its ranks.
    """
    sent = tokens(shape) / sequence_ways(shape) * block.top_k
    imbalance = constant("expert_imbalance") if shape.expert_parallel > 1 else 1.0
    return sent * shape.expert_tensor_parallel * imbalance


def _experts(block: MoeFeedForward, hidden: int, shape: Shape) -> float:
    """Routed tokens as the experts read them, their products, fp32 router logits and scores."""
    size = block.expert_size / shape.expert_tensor_parallel
    token = hidden * matmul_input_bytes(shape) + _products(size, block.gated, shape)
    if not block.gated:
        # The activation's own output, before the router's weight multiplies it.
        token += size * element_bytes(shape)
    routed = routed_tokens(block, shape) * token
    router = tokens(shape) / sequence_ways(shape) * block.experts * 4 * 2
    shared = _products(block.shared_size / shape.tensor_parallel, block.gated, shape)
    return routed + router + tokens(shape) * shared


def _gradients(layer: Layer, hidden: int, shape: Shape) -> float:
    """The largest gradients that live at once in the backward pass of `layer`.

    In a feed-forward block: that of its output, of the second product's input, of the first product
    (3 widths in all where a gate doubles it), and its gathered input; in an unfused attention: that
    of the softmax and of what goes into it.
    """
    element = element_bytes(shape)
    largest = 0.0
    match layer.feed_forward:
        case DenseFeedForward() as block:
            size = block.size / shape.tensor_parallel
            largest = tokens(shape) * (2 * hidden + (3 if block.gated else 2) * size)
        case MoeFeedForward() as block:
            size = block.expert_size / shape.expert_tensor_parallel
            inner = (3 if block.gated else 2) * size
            largest = routed_tokens(block, shape) * (2 * hidden + inner)
        case None:
            pass
    if layer.attention is not None and shape.kernel == "unfused":
        heads = layer.attention.heads / shape.tensor_parallel
        largest = max(largest, 2 * heads * tokens(shape) * shape.sequence)
    return largest * element
