"""Read a model from the config.json of a Hugging Face repository."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydantic import ValidationError

from hetcli.errors import ModelError
from hetcli.spec.model.architecture import Model
from hetcli.spec.model.config import ConfigReader, shown
from hetcli.spec.model.families import chatglm, classic, gated, mixture

if TYPE_CHECKING:
    from hetcli.spec.complaint import Locator

__all__ = ["is_huggingface_config", "known_architectures", "model_from_config"]


@dataclass(frozen=True, slots=True)
class _Family:
    """`types` are values of `model_type`, `classes` of `architectures`."""

    read: Callable[[ConfigReader], Model]
    types: tuple[str, ...]
    classes: tuple[str, ...]


_FAMILIES: Final = (
    _Family(gated.llama, ("llama",), ("LlamaForCausalLM",)),
    _Family(gated.mistral, ("mistral",), ("MistralForCausalLM",)),
    _Family(
        gated.qwen2,
        ("qwen2", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text"),
        ("Qwen2ForCausalLM",),
    ),
    _Family(gated.qwen3, ("qwen3", "qwen3_vl_text"), ("Qwen3ForCausalLM",)),
    _Family(gated.gemma, ("gemma",), ("GemmaForCausalLM",)),
    _Family(gated.gemma2, ("gemma2",), ("Gemma2ForCausalLM",)),
    _Family(gated.gemma3, ("gemma3_text",), ("Gemma3ForCausalLM",)),
    _Family(gated.phi3, ("phi3",), ("Phi3ForCausalLM",)),
    _Family(gated.glm, ("glm",), ("GlmForCausalLM",)),
    _Family(gated.glm4, ("glm4", "glm4v_text"), ("Glm4ForCausalLM",)),
    _Family(gated.olmo2, ("olmo2",), ("Olmo2ForCausalLM",)),
    _Family(chatglm.chatglm, ("chatglm",), ("ChatGLMModel", "ChatGLMForConditionalGeneration")),
    _Family(mixture.mixtral, ("mixtral",), ("MixtralForCausalLM",)),
    _Family(mixture.qwen2_moe, ("qwen2_moe",), ("Qwen2MoeForCausalLM",)),
    _Family(mixture.qwen3_moe, ("qwen3_moe", "qwen3_vl_moe_text"), ("Qwen3MoeForCausalLM",)),
    _Family(mixture.deepseek_v2, ("deepseek_v2",), ("DeepseekV2ForCausalLM",)),
    _Family(mixture.deepseek_v3, ("deepseek_v3",), ("DeepseekV3ForCausalLM",)),
    _Family(mixture.glm4_moe, ("glm4_moe",), ("Glm4MoeForCausalLM",)),
    _Family(classic.gpt2, ("gpt2",), ("GPT2LMHeadModel",)),
    _Family(classic.gpt_neox, ("gpt_neox",), ("GPTNeoXForCausalLM",)),
    _Family(classic.opt, ("opt",), ("OPTForCausalLM",)),
    _Family(classic.bloom, ("bloom",), ("BloomForCausalLM",)),
    _Family(classic.falcon, ("falcon",), ("FalconForCausalLM",)),
)
# The text model of a multi-modal class whose `text_config` does not name it.
_TEXT_TYPES: Final = {"gemma3": "gemma3_text", "llava": "llama", "mistral3": "mistral"}


def known_architectures() -> list[str]:
    """The values of `model_type` that hetcli reads, sorted."""
    return sorted(name for family in _FAMILIES for name in family.types)


def is_huggingface_config(data: Mapping[str, object]) -> bool:
    """Whether a document says that it is a Hugging Face configuration."""
    return "model_type" in data or "architectures" in data


def _family(data: Mapping[str, object], where: str) -> _Family:
    """The family by `model_type`, or else by the class that `architectures` names."""
    model_type, architectures = data.get("model_type"), data.get("architectures")
    classes = architectures if isinstance(architectures, list | tuple) else [architectures]
    for family in _FAMILIES:
        if model_type in family.types:
            return family
    for family in _FAMILIES:
        if any(name in family.classes for name in classes):
            return family
    raise ModelError(
        f"{where}: model_type is {shown(model_type)}, architectures {shown(architectures)}",
        why="hetcli does not know this architecture",
        fix=f"known model types: {', '.join(known_architectures())}; any other decoder can be "
        "described as a list of layers in a model file (hetcli schema model)",
    )


def _text_config(data: Mapping[str, object]) -> dict[str, object] | None:
    """The language model of a multi-modal configuration, or None when it is not nested."""
    text = data.get("text_config")
    if not isinstance(text, Mapping):
        return None
    merged = dict(text)
    outer = data.get("model_type")
    if "model_type" not in merged and isinstance(outer, str):
        merged["model_type"] = _TEXT_TYPES.get(outer, outer)
    # The head belongs to the outer class.
    if "tie_word_embeddings" in data:
        merged["tie_word_embeddings"] = data["tie_word_embeddings"]
    return merged


def model_from_config(
    data: Mapping[str, object], *, name: str, source: str = "", locator: Locator | None = None
) -> Model:
    """The model that a Hugging Face configuration describes.

    Of a multi-modal configuration the language model is read (`text_config`); the model's notes
    say so. Errors name `source` (a path or a URL) or, with a `locator`, the line. Raises
    ModelError on an unknown architecture and on any key whose value can't be.
    """
    where = source or name
    text = _text_config(data)
    config = data if text is None else text
    reader = ConfigReader(
        config,
        name=name,
        source=source,
        locator=locator,
        place=() if text is None else ("text_config",),
    )
    family = _family(config, where)
    try:
        model = family.read(reader)
    except ValidationError as error:
        # Rules across keys that the families leave to the records.
        raise ModelError(
            f"{where}: no such model can be built",
            why=str(error.errors(include_url=False)[0]["msg"]).removeprefix("Value error, "),
            fix="correct the configuration",
        ) from None
    if text is None and "vision_config" not in data:
        return model
    note = f"only the language model of {shown(data.get('model_type'))} is counted"
    return model.model_copy(update={"notes": (note,)})
