"""The model of a measured run, from the columns and the `arch:` note of its row."""

from __future__ import annotations

import re

from hetcli.perf.validation.table import Row
from hetcli.spec.model.architecture import (
    DenseFeedForward,
    FeedForward,
    GroupedQueryAttention,
    LatentAttention,
    Layer,
    LayerRun,
    Model,
    MoeFeedForward,
    Norm,
    Positions,
)

__all__ = ["arguments", "model_of"]

# GPT-2's vocabulary padded to a multiple of 128 x 8, Megatron-LM's own example; for rows without.
DEFAULT_VOCABULARY = 51200
# BigScience's multilingual tokenizer, whose tables say "250k" (bloom's config.json).
BLOOM_VOCABULARY = 250_880
# GPT-2's vocabulary, which Megatron-LM's functional tests use where they name no other tokenizer.
TEST_VOCABULARY = 50257
# Families whose feed-forward is gated; GPT, OPT, MPT and Nemotron have two matrices.
_GATED = re.compile(r"llama|qwen|mixtral|mistral|deepseek|kimi|oss|grok|gemma", re.IGNORECASE)


# Vocabularies of the tokenizers that functional tests name.
_TOKENIZERS = {"nemotron_2_256k.model": 256_000, "tokenizer.model": 32_000}


def arguments(row: Row) -> dict[str, str]:
    """Megatron-LM's arguments that a row's note quotes (`swiglu=True; mtp-num-layers=1`)."""
    quoted = dict(re.findall(r"([a-z][\w-]*)=([^;]+)", row.text("notes") or ""))
    return quoted if "transformer-impl" in quoted else {}


def _noted(row: Row, pattern: str) -> int | None:
    found = re.search(pattern, row.text("notes") or "")
    return int(found[1]) if found else None


def _attention(row: Row, hidden: int) -> GroupedQueryAttention | LatentAttention:
    heads = row.need("heads")
    quoted = arguments(row)
    rank = _noted(row, r"kv_lora (\d+)")
    if rank is None and "multi-latent-attention" in quoted:
        raise ValueError("the sizes of its latent attention are not given")
    if rank is None and "MLA as DeepSeek-V3" in (row.text("notes") or ""):
        # DeepSeek-V3's config.json (arXiv 2412.19437, section 4.2).
        return LatentAttention(
            heads=heads,
            query_rank=1536,
            kv_rank=512,
            head_dim_without_rope=128,
            head_dim_rope=64,
            value_head_dim=128,
        )
    if rank is not None:
        # Widths that a note leaves out are DeepSeek-V3's.
        return LatentAttention(
            heads=heads,
            query_rank=_noted(row, r"q_lora (\d+)"),
            kv_rank=rank,
            head_dim_without_rope=_noted(row, r"nope (\d+)") or 128,
            head_dim_rope=_noted(row, r"rope (\d+)") or 64,
            value_head_dim=_noted(row, r" v (\d+)") or 128,
        )
    return GroupedQueryAttention(
        heads=heads,
        kv_heads=row.integer("kv_heads") or heads,
        head_dim=_noted(row, r"head_dim (\d+)") or int(quoted.get("kv-channels", hidden // heads)),
    )


def _gated(row: Row) -> bool:
    quoted = arguments(row)
    return "swiglu" in quoted if quoted else bool(_GATED.search(row.text("model") or ""))


def _blocks(row: Row, hidden: int) -> tuple[DenseFeedForward, MoeFeedForward | None, int, int]:
    """The dense block, the experts if any, dense layers in front, and every how many layers."""
    gated = _gated(row)
    quoted = arguments(row)
    # Four times the hidden size where nothing is said (GPT-3, arXiv 2005.14165, section 2.1).
    dense = DenseFeedForward(size=row.integer("ffn_hidden") or 4 * hidden, gated=gated)
    experts = row.integer("num_experts")
    if not experts:
        return dense, None, 0, 1
    notes = row.text("notes") or ""
    size = (
        _noted(row, r"moe_ffn (\d+)")
        or _noted(row, r"MoE ffn (\d+)")
        or int(quoted.get("moe-ffn-hidden-size", dense.size))
    )
    shared = (
        _noted(row, r"shared expert (\d+)")
        or size * (_noted(row, r"(\d+) shared expert") or 0)
        or int(quoted.get("moe-shared-expert-intermediate-size", 0))
    )
    moe = MoeFeedForward(
        experts=experts,
        top_k=row.integer("topk") or 1,
        expert_size=size,
        shared_size=shared,
        gated=gated,
    )
    front = (
        _noted(row, r"first (\d+) layers dense")
        or _noted(row, r"moe-layer-freq=\(\[0\]\*(\d+)")
        or (1 if "first layer dense" in notes else 0)
    )
    return dense, moe, front, 2 if "every second layer" in notes else 1


def model_of(row: Row) -> Model:
    """The model that the row was measured with. Raises ValueError when a size is missing."""
    hidden, count = row.need("hidden"), row.need("layers")
    attention = _attention(row, hidden)
    dense, moe, front, period = _blocks(row, hidden)

    def run(number: int, block: FeedForward) -> LayerRun:
        own = attention
        return LayerRun(count=number, layer=Layer(attention=own, feed_forward=block))

    runs: list[LayerRun] = []
    if moe is None:
        runs.append(run(count, dense))
    elif period > 1:
        for _ in range(count // period):
            runs += [run(period - 1, dense), run(1, moe)]
    else:
        if front:
            runs.append(run(front, dense))
        runs.append(run(count - front, moe))
    gated, sequence = dense.gated, row.need("seq_len")
    quoted = arguments(row)
    positions = quoted.get("position-embedding-type", "learned") if quoted else None
    learned = positions == "learned" if quoted else not gated
    vocabulary = row.integer("vocab") or DEFAULT_VOCABULARY
    if "vocab 250k" in (row.text("notes") or ""):
        vocabulary = BLOOM_VOCABULARY
    if quoted and not row.integer("vocab"):
        vocabulary = _TOKENIZERS.get(quoted.get("tokenizer-model", ""), TEST_VOCABULARY)
    return Model(
        name=row.text("model") or "model",
        architecture="measured",
        hidden_size=hidden,
        vocab_size=vocabulary,
        max_sequence=sequence,
        layers=tuple(_windowed(runs, row)),
        norm=Norm() if gated else Norm(kind="layernorm", bias=True),
        tied_embeddings="untie-embeddings-and-output-weights" not in quoted
        if quoted
        else not gated,
        positions=Positions(kind="learned", table_size=sequence) if learned else Positions(),
        prediction_layers=int(quoted.get("mtp-num-layers", 0)),
    )


def _windowed(runs: list[LayerRun], row: Row) -> list[LayerRun]:
    """Every second layer with a sliding window, where the row says so (GPT-OSS)."""
    window = _noted(row, r"alternating sliding window (\d+)")
    if window is None:
        return runs
    found: list[LayerRun] = []
    for each in runs:
        attention = each.layer.attention
        assert isinstance(attention, GroupedQueryAttention)
        narrow = attention.model_copy(update={"sliding_window": window})
        local = each.layer.model_copy(update={"attention": narrow})
        for _ in range(each.count // 2):
            found += [LayerRun(count=1, layer=local), LayerRun(count=1, layer=each.layer)]
    return found
