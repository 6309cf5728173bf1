"""The bodies of requests: JSON is read as the standard library reads it, and no key may be there twice."""

import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as some

from adar_serve.limits import Limits
from adar_serve.messages import parse, read_object
from adar_serve.refusals import RefusedError

LIMITS = Limits()
VALUES = some.recursive(
    some.none() | some.booleans() | some.integers() | some.floats(allow_nan=False) | some.text(),
    lambda inner: some.lists(inner) | some.dictionaries(some.text(), inner),
)


@given(some.dictionaries(some.text(), VALUES), some.booleans())
def test_json_is_read_as_by_the_standard_library(content: dict[str, Any], ascii_only: bool) -> None:
    text = json.dumps(content, ensure_ascii=ascii_only).encode(errors="surrogatepass")
    try:
        expected = json.loads(text)
    except ValueError:
        with pytest.raises(RefusedError, match="not JSON"):
            read_object(text, LIMITS)
    else:
        found = read_object(text, LIMITS)
        assert found == expected
        assert str(found) == str(expected)  # 1 is not True and not 1.0


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "\\u0061": 1}',
        '{"b": {"a": 1, "a": 2}}',
        '{"b": [{"a": 1}, {"a": 1, "a": 2}]}',
        '{"b": [1, {"a": 1, "a": 2}]}',
        '{"b": [[{"a": 1, "a": 2}]], "c": ":"}',
    ],
)
def test_a_duplicate_key_is_refused_at_every_depth(text: str) -> None:
    with pytest.raises(RefusedError, match="duplicate key"):
        read_object(text.encode(), LIMITS)


@pytest.mark.parametrize(
    "text", [b'{"a": "\xff"}', b'{"a": 01}', b'{"a": 1} x', b"[" * 100_000, b"", b"\xff"]
)
def test_what_is_not_json_is_refused(text: bytes) -> None:
    with pytest.raises(RefusedError, match="not JSON"):
        read_object(text, LIMITS)


def test_numbers_that_only_the_standard_library_reads() -> None:
    assert str(read_object(b'{"a": [NaN, 1e999, 123456789012345678901234567890]}', LIMITS)) == (
        "{'a': [nan, inf, 123456789012345678901234567890]}"
    )
    assert read_object(b'\xef\xbb\xbf{"a": ":"}', LIMITS) == {"a": ":"}


def body(array: Any, **tensor: object) -> tuple[bytes, str]:
    content = {"name": "x", "datatype": "FP32", "shape": [2, 3], **tensor}
    head = json.dumps({"inputs": [{**content, "parameters": {"binary_data_size": 24}}]}).encode()
    return head + np.asarray(array, np.float32).tobytes(), str(len(head))


def test_requests_with_the_same_head_have_their_own_tensors() -> None:
    arrays = np.arange(18, dtype=np.float32).reshape(3, 2, 3)
    for _ in range(2):
        for array in arrays:
            found = parse(*body(array), LIMITS)
            assert np.array_equal(found.inputs["x"], array)
            assert not found.inputs["x"].flags.writeable  # a view of the body
        with pytest.raises(RefusedError, match="after the last tensor"):
            parse(body(arrays[0])[0] + b"1", body(arrays[0])[1], LIMITS)
        with pytest.raises(RefusedError, match="binary_data_size"):
            parse(body(arrays[0])[0][:-1], body(arrays[0])[1], LIMITS)
        with pytest.raises(RefusedError, match="datatype"):
            parse(*body(arrays[0], datatype="TEXT"), LIMITS)


def test_json_that_is_read_again_is_in_memory_once() -> None:
    """Two readers read a text with a colon in a string."""
    read_object(b"{}", LIMITS)  # imports the readers
    numbers, peaks = b",".join([b"1.5"] * 300_000), list[int]()
    for word in (b"word", b"a:b"):
        text = b'{"word": "' + word + b'", "data": [' + numbers + b"]}"
        tracemalloc.start()
        try:
            assert len(read_object(text, LIMITS)["data"]) == 300_000
            peaks.append(tracemalloc.get_traced_memory()[1])
        finally:
            tracemalloc.stop()
    assert peaks[1] < 1.5 * peaks[0], peaks
