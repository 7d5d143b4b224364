"""What transformers takes for a key that a configuration leaves out.

Source: the configuration classes of transformers 5.24,
src/transformers/models/*/configuration_*.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = [
    "DEEPSEEK_V2",
    "DEEPSEEK_V3",
    "GEMMA",
    "GEMMA2",
    "GEMMA3",
    "GLM",
    "GLM4_MOE",
    "LLAMA",
    "MISTRAL",
    "MIXTRAL",
    "OLMO2",
    "PHI3",
    "QWEN2",
    "QWEN2_MOE",
    "QWEN3",
    "QWEN3_MOE",
    "Defaults",
]


@dataclass(frozen=True, slots=True)
class Defaults:
    """The defaults of one configuration class; None stands for a rule of the class's own.

    Without `kv_heads` there are as many as heads, without `head_dim` it is hidden size / heads;
    a `top_k` of 0 is one that the class leaves out as well. `expert_keys` are the spellings of the
    number of experts, the class's own first.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layers: int
    heads: int
    max_sequence: int
    kv_heads: int | None = None
    head_dim: int | None = None
    epsilon: float = 1e-6
    activation: str = "silu"
    rope_base: float = 10000.0
    rotary_fraction: float = 1.0
    tied: bool = False
    expert_keys: tuple[str, ...] = ()
    experts: int = 0
    top_k: int = 0
    expert_size: int = 0
    shared_experts: int = 0
    first_dense: int = 0
    normalize_top_k: bool = False


LLAMA: Final = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=11008,
    layers=32,
    heads=32,
    max_sequence=2048,
)
MISTRAL: Final = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    max_sequence=131072,
)
MIXTRAL: Final = Defaults(
    vocab_size=32000,
    hidden_size=4096,
    intermediate_size=14336,
    layers=32,
    heads=32,
    kv_heads=8,
    max_sequence=131072,
    epsilon=1e-5,
    rope_base=1e6,
    expert_keys=("num_local_experts", "num_experts"),
    experts=8,
    top_k=2,
)
QWEN2: Final = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    layers=32,
    heads=32,
    kv_heads=32,
    max_sequence=32768,
)
QWEN2_MOE: Final = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=5632,
    layers=24,
    heads=16,
    kv_heads=16,
    max_sequence=32768,
    expert_keys=("num_experts", "num_local_experts"),
    experts=60,
    top_k=4,
    expert_size=1408,
)
QWEN3: Final = Defaults(
    vocab_size=151936,
    hidden_size=4096,
    intermediate_size=22016,
    layers=32,
    heads=32,
    kv_heads=32,
    head_dim=128,
    max_sequence=32768,
)
QWEN3_MOE: Final = Defaults(
    vocab_size=151936,
    hidden_size=2048,
    intermediate_size=6144,
    layers=24,
    heads=32,
    kv_heads=4,
    max_sequence=32768,
    expert_keys=("num_experts", "num_local_experts"),
    experts=128,
    top_k=8,
    expert_size=768,
)
DEEPSEEK_V2: Final = Defaults(
    vocab_size=102400,
    hidden_size=4096,
    intermediate_size=11008,
    layers=32,
    heads=32,
    max_sequence=2048,
    expert_keys=("n_routed_experts", "num_experts"),
    experts=64,
    expert_size=1407,
    shared_experts=2,
)
DEEPSEEK_V3: Final = Defaults(
    vocab_size=129280,
    hidden_size=7168,
    intermediate_size=18432,
    layers=61,
    heads=128,
    max_sequence=4096,
    expert_keys=("n_routed_experts", "num_local_experts"),
    experts=256,
    top_k=8,
    expert_size=2048,
    shared_experts=1,
    first_dense=3,
    normalize_top_k=True,
)
GEMMA: Final = Defaults(
    vocab_size=256000,
    hidden_size=3072,
    intermediate_size=24576,
    layers=28,
    heads=16,
    kv_heads=16,
    head_dim=256,
    max_sequence=8192,
    activation="gelu_pytorch_tanh",
    tied=True,
)
GEMMA2: Final = Defaults(
    vocab_size=256000,
    hidden_size=2304,
    intermediate_size=9216,
    layers=26,
    heads=8,
    kv_heads=4,
    head_dim=256,
    max_sequence=8192,
    activation="gelu_pytorch_tanh",
    tied=True,
)
GEMMA3: Final = Defaults(
    vocab_size=262208,
    hidden_size=2304,
    intermediate_size=9216,
    layers=26,
    heads=8,
    kv_heads=4,
    head_dim=256,
    max_sequence=131072,
    activation="gelu_pytorch_tanh",
    rope_base=1e6,
    tied=True,
)
PHI3: Final = Defaults(
    vocab_size=32064,
    hidden_size=3072,
    intermediate_size=8192,
    layers=32,
    heads=32,
    max_sequence=4096,
    epsilon=1e-5,
)
GLM: Final = Defaults(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=13696,
    layers=40,
    heads=32,
    kv_heads=2,
    head_dim=128,
    max_sequence=131072,
    epsilon=1.5625e-7,
    rotary_fraction=0.5,
)
GLM4_MOE: Final = Defaults(
    vocab_size=151552,
    hidden_size=4096,
    intermediate_size=10944,
    layers=46,
    heads=96,
    kv_heads=8,
    max_sequence=131072,
    epsilon=1e-5,
    rotary_fraction=0.5,
    expert_keys=("n_routed_experts", "num_local_experts"),
    experts=128,
    top_k=8,
    expert_size=1408,
    shared_experts=1,
    first_dense=1,
    normalize_top_k=True,
)
OLMO2: Final = Defaults(
    vocab_size=50304,
    hidden_size=4096,
    intermediate_size=11008,
    layers=32,
    heads=32,
    max_sequence=2048,
    epsilon=1e-5,
)
