"""Parse JSON from outside: no duplicate keys, no deep nesting, no numbers beyond float, only valid text."""

import json
from typing import Any

MAX_DEPTH = 50  # of nested lists and objects: 6 are needed, and copying fails at some hundreds
MAX_DIGITS = 300  # of an integer: longer ones cannot be converted to float


def parse_json(text: str) -> Any:
    """The value in a JSON text. `NaN` and `Infinity` are allowed: metrics contain them.

    Raises:
        ValueError: The text is not JSON, or has one of the properties above.
    """
    try:
        value = json.loads(text, object_pairs_hook=_each_once, parse_int=_integer)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    _check(value, MAX_DEPTH)
    return value


def _each_once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object without duplicate keys: JSON readers differ in which of two values they take."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("an object has a duplicate key")
    return found


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise ValueError(f"an integer has more than {MAX_DIGITS} digits")
    return int(digits)


def _check(value: Any, levels: int) -> None:
    if isinstance(value, str):
        _check_text(value)
    elif isinstance(value, dict | list):
        if not levels:
            raise ValueError(f"it is nested more than {MAX_DEPTH} levels deep")
        if isinstance(value, dict):
            for key in value:
                _check_text(key)
        for each in value.values() if isinstance(value, dict) else value:
            _check(each, levels - 1)


def _check_text(text: str) -> None:
    """Refuse lone surrogates, which cannot be printed or written."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError("a text contains characters that are not valid Unicode") from error
