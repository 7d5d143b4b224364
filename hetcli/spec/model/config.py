"""Typed access to the keys of a Hugging Face configuration; whatever is wrong is a ModelError.

A configuration is JSON that somebody else wrote: a key may be missing, null, or of any type.
"""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

from hetcli.errors import ModelError
from hetcli.spec.model.architecture import MAX_LAYERS, MAX_SIZE, Activation

if TYPE_CHECKING:
    from hetcli.spec.complaint import Locator

__all__ = ["ConfigReader", "shown"]

# Names of transformers' ACT2FN (transformers/activations.py) that mean the same function.
_ACTIVATIONS: Final[dict[str, Activation]] = {
    "silu": "silu",
    "swish": "silu",
    "gelu": "gelu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "relu": "relu",
    "relu2": "relu_squared",
}
_MISSING: Final = object()
_SHORT: Final = reprlib.Repr()
_SHORT.maxstring = _SHORT.maxother = 60


def shown(value: object) -> str:
    """A value as an error prints it: quoted, escaped, and never long."""
    if isinstance(value, int) and abs(value) > 10**30:
        return f"an integer of {value.bit_length()} bits"
    return _SHORT.repr(value)


class ConfigReader:
    """The keys of one configuration.

    Every getter takes the spellings of a key in the order in which they count, and the default of
    the configuration class in transformers. A null is read as a missing key, except by `optional`.
    """

    def __init__(
        self,
        data: Mapping[str, object],
        *,
        name: str,
        source: str = "",
        locator: Locator | None = None,
        place: tuple[str, ...] = (),
    ) -> None:
        """Read `data`, which stands at `place` of the file that `locator` and `source` name."""
        self._data = data
        self._locator = locator
        self._place = place
        self.name = name
        self.source = source

    def refuse(self, key: str, *, why: str, fix: str) -> NoReturn:
        """Raise the ModelError that `key` and its value deserve."""
        place = (*self._place, key)
        if self._locator is not None:
            where = self._locator.at(place)
        else:
            where = f"{self.source or self.name}: {'.'.join(place)}"
        found = f"is {shown(self._data[key])}" if key in self._data else "is missing"
        raise ModelError(f"{where} {found}", why=why, fix=fix)

    def has(self, key: str) -> bool:
        """Whether the key is there with a value other than null."""
        return self._data.get(key) is not None

    def null(self, key: str) -> bool:
        """Whether the configuration says null, which is not the same as saying nothing."""
        return key in self._data and self._data[key] is None

    def spelling(self, *keys: str) -> str:
        """The one of `keys` that the configuration uses."""
        return self._find(keys)[0]

    def _find(self, keys: Sequence[str]) -> tuple[str, object]:
        for key in keys:
            if self.has(key):
                return key, self._data[key]
        return keys[0], _MISSING

    def size(self, *keys: str, default: int | None = None, largest: int = MAX_SIZE) -> int:
        """A whole number from 1; a missing key without a default is refused."""
        return self._whole(keys, default, smallest=1, largest=largest)

    def count(self, *keys: str, default: int | None = None, largest: int = MAX_SIZE) -> int:
        """A whole number from 0; a missing key without a default is refused."""
        return self._whole(keys, default, smallest=0, largest=largest)

    def dimension(self, *keys: str, default: int, largest: int = MAX_SIZE) -> int:
        """A size that transformers writes into every configuration of its own.

        Only a nested configuration (`text_config`) leaves out what equals its class's default.
        """
        return self.size(*keys, default=default if self._place else None, largest=largest)

    def _whole(
        self, keys: Sequence[str], default: int | None, *, smallest: int, largest: int
    ) -> int:
        key, value = self._find(keys)
        if value is _MISSING:
            if default is None:
                self.refuse(key, why="the size of the model depends on it", fix=f"add {key}")
            return default
        if isinstance(value, int) and not isinstance(value, bool) and smallest <= value <= largest:
            return value
        return self.refuse(
            key,
            why="it is a size or a count",
            fix=f"a whole number from {smallest} to {largest}",
        )

    def optional(self, key: str, default: int | None = None) -> int | None:
        """A size, or None when the key is null; the default when it is missing."""
        if key not in self._data:
            return default
        return self.size(key) if self.has(key) else None

    def number(
        self, *keys: str, default: float, largest: float = 1e15, zero: bool = False
    ) -> float:
        """A number above 0, or from 0 where `zero` is legal."""
        key, value = self._find(keys)
        if value is _MISSING:
            return default
        if (
            isinstance(value, int | float)
            and not isinstance(value, bool)
            and (0 < value <= largest or (zero and value == 0))
        ):
            return float(value)
        return self.refuse(
            key, why="it is a positive quantity", fix=f"a number above 0, at most {largest:g}"
        )

    def optional_number(
        self, key: str, default: float | None = None, *, zero: bool = False
    ) -> float | None:
        """A number, or None when the key is null; the default when it is missing."""
        if key not in self._data:
            return default
        return self.number(key, default=0.0, zero=zero) if self.has(key) else None

    def flag(self, *keys: str, default: bool) -> bool:
        """A boolean."""
        key, value = self._find(keys)
        if value is _MISSING:
            return default
        if isinstance(value, bool):
            return value
        return self.refuse(key, why="it is a switch", fix="true or false")

    def choice(self, *keys: str, default: str, legal: Sequence[str]) -> str:
        """One of the `legal` words."""
        key, value = self._find(keys)
        if value is _MISSING:
            return default
        if isinstance(value, str) and value in legal:
            return value
        return self.refuse(
            key, why="hetcli does not know this variant", fix=f"one of {', '.join(legal)}"
        )

    def activation(self, *keys: str, default: str) -> Activation:
        """The activation function of the feed-forward blocks."""
        return _ACTIVATIONS[self.choice(*keys, default=default, legal=tuple(_ACTIVATIONS))]

    def section(self, key: str) -> ConfigReader | None:
        """The mapping under `key`, or None when there is none."""
        if not self.has(key):
            return None
        value = self._data[key]
        if not isinstance(value, Mapping):
            self.refuse(key, why="it is a section of its own", fix="a mapping, or null")
        return ConfigReader(
            value,
            name=self.name,
            source=self.source,
            locator=self._locator,
            place=(*self._place, key),
        )

    def items(self, key: str) -> list[object] | None:
        """The list under `key`, or None when there is none."""
        if not self.has(key):
            return None
        value = self._data[key]
        if not isinstance(value, list | tuple) or len(value) > MAX_LAYERS:
            self.refuse(key, why="it is a list", fix=f"a list of at most {MAX_LAYERS} entries")
        return list(value)
