"""Encodings from outside: everything is checked."""

import json
from typing import Any

import pytest

from adar_runtime.graph import EncodedColumn, FeatureEncoding
from adar_runtime.graph.limits import MAX_COLUMNS

COLUMN = {"name": "x", "kind": "number", "categories": [], "missing": False}
WORDS = {"name": "w", "kind": "category", "categories": ["a", "b"], "missing": True}
VALID: dict[str, Any] = {
    "columns": [COLUMN, WORDS], "id": "i", "label": None, "labels": "numbers", "source": None, "target": "t",
    "both_ways": True,
}  # fmt: skip


def test_an_encoding_survives_json() -> None:
    found = FeatureEncoding.from_value(json.loads(json.dumps(VALID)))
    assert json.loads(json.dumps(found.to_value())) == VALID
    assert found.columns[1] == EncodedColumn("w", "category", ("a", "b"), missing=True)
    assert (found.width, found.feature_names) == (4, ["x", "w=a", "w=b", "w is missing"])
    none = FeatureEncoding.from_value(VALID | {"columns": []})
    assert (none.width, none.feature_names) == (2, ["constant", "log_degree"])


@pytest.mark.parametrize(
    "value",
    [
        None,
        [],
        {},
        VALID | {"columns": "x"},
        VALID | {"columns": [1]},
        VALID | {"columns": [COLUMN, COLUMN]},
        VALID | {"columns": [COLUMN | {"kind": "text"}]},
        VALID | {"columns": [COLUMN | {"categories": ["a"]}]},
        VALID | {"columns": [COLUMN | {"missing": 1}]},
        VALID | {"columns": [COLUMN | {"name": 5}]},
        VALID | {"columns": [WORDS | {"categories": ["a", "a"]}]},
        VALID | {"columns": [WORDS | {"categories": ["a", 1]}]},
        VALID | {"columns": [WORDS | {"categories": [""]}]},
        VALID | {"columns": [WORDS | {"categories": [], "missing": False}]},
        VALID | {"columns": [WORDS | {"categories": [str(i) for i in range(MAX_COLUMNS + 1)]}]},
        VALID | {"id": 5},
        VALID | {"labels": "words"},
        VALID | {"both_ways": "yes"},
    ],
)
def test_other_values_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match=r"."):
        FeatureEncoding.from_value(value)
