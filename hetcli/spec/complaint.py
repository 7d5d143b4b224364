"""What pydantic found wrong, as one three-part error that names the line and the legal values."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from hetcli.errors import SpecError
from hetcli.spec.base import SCHEMA_VERSION
from hetcli.spec.markup import Mark, json_marks

__all__ = ["Locator", "complain", "first_reason", "spell"]

Place = Sequence[str | int]

_LISTED: Final = 3
_KINDS: Final = {
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "true or false",
    "array": "a list",
    "object": "a mapping of key: value lines",
}
_BOUNDS: Final = {
    "exclusiveMinimum": "above {}",
    "minimum": "of at least {}",
    "exclusiveMaximum": "below {}",
    "maximum": "of at most {}",
    "pattern": "that matches {}",
}
_LENGTHS: Final = {"Length": "characters", "Items": "items"}


@dataclass(frozen=True)
class Locator:
    """Where values stand in the text they were read from, for error messages."""

    label: str
    text: str
    marks: Mark | None = None

    @cached_property
    def _root(self) -> Mark:
        # JSON is read without marks, since they are only needed when something is wrong.
        if self.marks is not None:
            return self.marks
        try:
            return json_marks(self.text, self.label)
        except SpecError:
            return Mark(1)

    def line(self, place: Place = ()) -> int:
        """The line, counted from 1, of a value or of the nearest one around it."""
        mark = self._root
        for key in place:
            if key not in mark.children:
                break
            mark = mark.children[key]
        return mark.line

    def at(self, place: Place = ()) -> str:
        """`cluster.yaml:7: nodes[0].gpus`, as an error's first part begins."""
        path = spell(place)
        # What was put together from options has no lines.
        where = f"{self.label}:{self.line(place)}" if self.text else self.label
        return f"{where}: {path}" if path else where


def spell(place: Place) -> str:
    """`nodes[0].gpus`."""
    text = ""
    for key in place:
        if isinstance(key, int):
            text += f"[{key}]"
        else:
            plain = key.replace("_", "").replace("-", "").isalnum() and len(key) <= 60
            text += f".{key}" if plain else f".{_short(key)}"
    return text.removeprefix(".")


def complain(
    error: ValidationError, data: Mapping[str, Any], locator: Locator, kind: type[BaseModel]
) -> SpecError:
    """The SpecError for the first thing that is wrong with `data`; the others are counted."""
    problems = list(_sorted(_Problem.read(entry, data) for entry in error.errors()))
    first, others = problems[0], problems[1:]
    what = f"{locator.at(first.place)}{first.value}"
    if others:
        listed = [f"line {locator.line(o.place)}: {spell(o.place)}" for o in others[:_LISTED]]
        more = ", ..." if len(others) > _LISTED else ""
        what += f" (and {len(others)} more: {', '.join(listed)}{more})"
    schema = kind.model_json_schema()
    own = list(_schemas_at(schema, first.place))
    why, fix = first.explain(own, list(_schemas_at(schema, first.place[:-1])))
    return SpecError(what, why=why, fix=fix)


def first_reason(error: ValidationError) -> str:
    """Why a record that was not read from a file is impossible: the first message, one line."""
    return error.errors()[0]["msg"].removeprefix("Value error, ")


@dataclass(frozen=True)
class _Problem:
    """One entry of pydantic's list, its place resolved in the data that was read."""

    kind: str
    place: tuple[str | int, ...]
    value: str
    message: str
    context: Mapping[str, Any]
    # The entry is about one member of a union, so others may describe the value better.
    alternative: bool

    @classmethod
    def read(cls, entry: Mapping[str, Any], data: Any) -> _Problem:
        context: Mapping[str, Any] = entry.get("ctx", {})
        steps = (*entry["loc"], *context.get("place", ()))
        place: list[str | int] = []
        missing = entry["type"] in ("missing", "union_tag_not_found")
        if entry["type"].startswith("union_tag"):
            # The key that says which member of a union is meant, quoted.
            steps = (*steps, context["discriminator"].strip("'"))
        for step in steps[:-1] if missing else steps:
            # Pydantic also names the member of a union that it tried, which no file contains.
            if (isinstance(data, dict) and step in data) or (
                isinstance(data, list) and isinstance(step, int) and step < len(data)
            ):
                data = data[step]
                place.append(step)
        if missing:
            place.append(steps[-1])
        return cls(
            kind="missing" if missing else entry["type"],
            place=tuple(place),
            value=": missing" if missing else _value(data),
            message=entry["msg"],
            context=context,
            alternative=len(place) < len(steps),
        )

    def explain(
        self, own: Sequence[Mapping[str, Any]], parents: Sequence[Mapping[str, Any]]
    ) -> tuple[str, str]:
        """Why the value is wrong and what would be right, from the JSON Schema at its place."""
        known = sorted({key for schema in parents for key in schema.get("properties", {})})
        if self.kind == "extra_forbidden":
            return "the format has no such key", _nearest(str(self.place[-1]), known, "key")
        if self.kind == "broken_rule":
            return self.context["why"], self.context["fix"]
        if self.place == ("schema_version",):
            return (
                f"this hetcli reads schema_version {SCHEMA_VERSION}",
                f"write schema_version: {SCHEMA_VERSION}, or use the hetcli that wrote the file",
            )
        legal = " or ".join(dict.fromkeys(filter(None, map(_legal, own))))
        if self.kind == "missing":
            key = spell(self.place[-1:])
            return "there is no default for it", f"add {key}: {legal or 'its value'}"
        if self.kind == "value_error":
            # Validators write "why; fix".
            why, _, fix = self.message.removeprefix("Value error, ").partition("; ")
            return why, fix or (f"write {legal}" if legal else "correct the value")
        choices = [str(choice) for schema in own for choice in _choices(schema)]
        why = self.message.replace("Input should", "it should", 1)
        if choices and self.value:
            return "it is none of the legal values", _nearest(self.value[2:], choices, "value")
        return why, f"write {legal}" if legal else "correct the value"


def _sorted(problems: Iterator[_Problem]) -> Iterator[_Problem]:
    """One problem a place, unknown keys first, without those that follow from another one."""
    by_place: dict[tuple[str | int, ...], _Problem] = {}
    for problem in problems:
        known = by_place.setdefault(problem.place, problem)
        # Of a union's members, the one whose type the value has says what is wrong with it.
        if known.kind.endswith("_type") and not problem.kind.endswith("_type"):
            by_place[problem.place] = problem
    deeper = {place[:length] for place in by_place for length in range(len(place))}
    # A list whose items are wrong also counts as too short.
    kept = [
        problem
        for problem in by_place.values()
        if problem.place not in deeper or not (problem.alternative or problem.kind == "too_short")
    ]
    yield from sorted(kept, key=lambda problem: problem.kind != "extra_forbidden")


def _schemas_at(root: Mapping[str, Any], place: Place) -> Iterator[Mapping[str, Any]]:
    """The JSON Schemas that may describe the value at `place`: several where there is a union."""

    def members(schema: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        if "$ref" in schema:
            target: Any = root
            for key in schema["$ref"].removeprefix("#/").split("/"):
                target = target[key]
            yield from members(target)
            return
        unions = [*schema.get("anyOf", ()), *schema.get("oneOf", ()), *schema.get("allOf", ())]
        if not unions:
            yield schema
        for member in unions:
            yield from members(member)

    def inside(schema: Mapping[str, Any], key: str | int) -> Iterator[Mapping[str, Any]]:
        if isinstance(key, str):
            inner = schema.get("properties", {}).get(key, schema.get("additionalProperties"))
        else:
            prefix = schema.get("prefixItems", ())
            inner = prefix[key] if key < len(prefix) else schema.get("items")
        if isinstance(inner, dict):
            yield from members(inner)

    found = list(members(root))
    for key in place:
        found = [inner for schema in found for inner in inside(schema, key)]
    yield from found


def _choices(schema: Mapping[str, Any]) -> Sequence[Any]:
    return [schema["const"]] if "const" in schema else schema.get("enum", ())


def _legal(schema: Mapping[str, Any]) -> str:
    """What a schema asks for, in words: `a whole number above 0`, `a size like 80GiB`."""
    if choices := _choices(schema):
        return ", ".join(map(str, choices))
    if schema.get("type") == "null":
        return ""
    if "examples" in schema:
        return f"{schema.get('description', 'a value')} like {' or '.join(schema['examples'])}"
    words = _KINDS.get(str(schema.get("type")), "")
    bounds = [text.format(schema[key]) for key, text in _BOUNDS.items() if key in schema]
    for length, unit in _LENGTHS.items():
        least, most = schema.get(f"min{length}", 0), schema.get(f"max{length}")
        if least or most:
            bounds.append(f"of {least} to {most} {unit}" if most else f"of {least} {unit} or more")
    return " ".join([words, " and ".join(bounds)]).strip()


def _nearest(given: str, legal: Sequence[str], kind: str) -> str:
    near = difflib.get_close_matches(given.strip("'\"")[:60], legal, n=1, cutoff=0.6)
    listed = ", ".join(legal)
    return f"did you mean {near[0]}? The {kind}s are {listed}" if near else f"use one of {listed}"


def _value(data: Any) -> str:
    """`: -4` for a plain value, nothing for one that would fill the line."""
    return "" if isinstance(data, dict | list) else f": {_short(data)}"


def _short(value: Any) -> str:
    text = repr(value) if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= 60 else f"{text[:57]}..."
