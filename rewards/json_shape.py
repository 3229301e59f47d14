"""The shape of a JSON value as a JSON Schema, and equality of two values but for volatile fields."""

import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import SchemaError
from referencing import Registry
from referencing.exceptions import Unresolvable

# Field names whose values the environment makes up at run time, unless the session has shown them before.
VOLATILE = re.compile(
    r"(?i)(?:^|[_-])(?:timestamp|time|date|created|updated|modified|elapsed|duration|latency|took|pid|uuid|guid|token"
    r"|nonce|etag|session|request)(?:$|[_-])|(?:^|[_-])id$|_at$|(?:Id|At|Time|Date)$"
)
_IDENTIFIER = re.compile(r"\W{0,2}[A-Za-z_]*\d[\w-]*")  # a key that is a name of one thing: "#W1092119", "4218"
_FORMATS = (
    r"^\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?\s*(Z|[+-]\d\d:?\d\d)?$",
    r"^\d{4}-\d\d-\d\d$",
    r"^\d\d:\d\d(:\d\d)?$",
    r"^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$",
)
MAX_DEPTH = 60  # a text that nests deeper is taken for no JSON, so that no policy can exhaust the stack
ABSENT = object()


@lru_cache(maxsize=256)
def parsed(text: str) -> Any:
    """The object or array that a text is; ABSENT for any other text, and for one that holds NaN or an infinity, which
    are no JSON, or nests too deep. Not to be changed by the caller."""
    if not text.lstrip().startswith(("{", "[")):
        return ABSENT
    try:
        value = json.loads(text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return ABSENT
    return ABSENT if _too_deep(value) else value


def shape(value: Any) -> dict[str, Any]:
    """A schema that the value meets: types, the keys of objects (all required, no others), the shapes that occur in
    arrays, and the pattern of dates, times and UUIDs. null leaves its type open; where every key of an object is an
    identifier, other identifiers may stand there."""
    if value is None:
        return {}
    if isinstance(value, bool):
        return {"type": "boolean"}
    if isinstance(value, int | float):
        return {"type": "number"}
    if isinstance(value, str):
        pattern = next((form for form in _FORMATS if re.search(form, value)), None)
        return {"type": "string"} | ({"pattern": pattern} if pattern else {})
    if isinstance(value, list):
        shapes = _distinct(shape(one) for one in value)
        return {"type": "array"} | ({"items": {"anyOf": shapes}} if shapes else {})
    if value and all(_IDENTIFIER.fullmatch(key) for key in value):
        shapes = _distinct(shape(one) for one in value.values())
        rest = {"anyOf": shapes}
        return {"type": "object", "minProperties": 1, "additionalProperties": False,
                "patternProperties": {f"^{_IDENTIFIER.pattern}$": rest}}  # fmt: skip
    properties = {key: shape(one) for key, one in value.items()}
    return {"type": "object", "properties": properties, "required": sorted(value), "additionalProperties": False}


@lru_cache(maxsize=256)
def shape_validator(reference: str) -> Draft202012Validator:
    """The validator of the shape of a true text, which is JSON."""
    return Draft202012Validator(shape(parsed(reference)))


def meets(validator: Draft202012Validator, value: Any) -> bool | None:
    """Whether a value has a schema; None where the schema refers to something that it does not hold."""
    try:
        return validator.is_valid(value)
    except Unresolvable:
        return None


@lru_cache(maxsize=256)
def declared_validator(action_space: str, tool: str) -> Draft202012Validator | None:
    """The validator of the output schema that a tool declares in a list of one JSON object a line; None without one."""
    for line in action_space.splitlines():
        entry = parsed(line.strip())
        if isinstance(entry, dict) and entry.get("name") == tool:
            schema = entry.get("outputSchema", entry.get("output_schema"))
            if isinstance(schema, dict) and _is_schema(schema):
                # An empty registry: a reference to an address is never fetched.
                return Draft202012Validator(schema, registry=Registry())
    return None


def differences(found: Any, expected: Any, known: str, path: str = "$") -> Iterable[str]:
    """The paths at which two values differ. A volatile field whose true value is not in `known` (what the session has
    shown and the action says) only has to agree in type."""
    if type(found) is not type(expected) and not (_is_number(found) and _is_number(expected)):
        yield path
    elif isinstance(expected, dict):
        for key in expected.keys() | found.keys():
            here = f"{path}.{key}"
            if key not in expected or key not in found:
                yield here
            elif VOLATILE.search(key) and _is_scalar(expected[key]) and str(expected[key]) not in known:
                if type(found[key]) is not type(expected[key]):
                    yield here
            else:
                yield from differences(found[key], expected[key], known, here)
    elif isinstance(expected, list):
        if len(found) != len(expected):
            yield path
        for number, (one, other) in enumerate(zip(found, expected, strict=False)):
            yield from differences(one, other, known, f"{path}[{number}]")
    elif found != expected:
        yield path


def _refuse(name: str) -> None:
    raise ValueError(f"{name} is no JSON")


def _too_deep(value: Any) -> bool:
    level, depth = [value], 0
    while level:
        if depth > MAX_DEPTH:
            return True
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        depth += 1
    return False


def _distinct(shapes: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return list({json.dumps(one, sort_keys=True): one for one in shapes}.values())


def _is_schema(schema: dict[str, Any]) -> bool:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError:
        return False
    return True


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_scalar(value: Any) -> bool:
    return not isinstance(value, dict | list)
