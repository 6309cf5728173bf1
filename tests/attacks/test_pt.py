"""Graphs with hostile attributes in `.pt` files, and unusual graphs that are read."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adar_runtime import read_graph
from tests.attacks.pt_files import X, assert_refused, quiet, rewrite, save
from tests.attacks.test_pt_tensors import repeated


def laughs(depth: int = 12) -> list:
    """Nested lists that repeat one list ten times per level: 10^12 numbers in a few hundred bytes."""
    value: list = [1.0] * 10
    for _ in range(depth):
        value = [value] * 10
    return value


def in_itself() -> list:
    found: list = []
    found.append(found)
    return found


ATTACKS = {
    "10^12 numbers, by lists of the same lists": ({"x": laughs()}, "not numbers in a tensor"),
    "a mask of lists of the same lists": ({"val_mask": laughs()}, "not booleans in a tensor"),
    "a level of lists of the same lists": ({"level": laughs()}, "level holds 'list', not a text"),
    "a level that is a list": ({"level": ["node"]}, "level is a list"),
    "a name with half a character": ({"class_names": ["a", "\ud800"]}, "not valid Unicode"),
    "a long name, which numpy pads every other name to": (
        {"class_names": ["n" * 10**6, *map(str, range(1000))]},
        "class_names[0] ('nnnnnnnnnnnnnnnnnnnnnnnnnnnnnn'…) has 1,000,000 characters",
    ),
    "the ids of pairs, which are padded to the longest": (
        {"ids": ["i" * 10**4, "a", "b", "c"], "pairs": torch.zeros(2, 5000, dtype=torch.long)},
        "the ids of the pairs",
    ),
    "10^7 halves of characters": ({"note": "\ud800" * 10**7}, "not valid Unicode"),
    "lists of lists": ({"x": [[1, 2], [3]]}, "not numbers in a tensor"),
    "names that are a number": ({"class_names": 3}, "list of strings"),
    "names that are one string": ({"class_names": "abc"}, "list of strings"),
    "a mask of words": ({"train_mask": ["yes"] * 4}, "not booleans"),
    "a very long level": ({"level": "x" * 10**5}, "…"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_graph_error(name: str, tmp_path: Path) -> None:
    entries, message = ATTACKS[name]
    assert_refused(read_graph, save(tmp_path / "g.pt", **entries), message)


UNUSUAL = {
    "PyG's adj_t": {"adj_t": quiet(torch.eye(4).to_sparse_csr)},
    "bfloat16 with a gradient": {"x": X.bfloat16().requires_grad_()},
    "float8": {"x": X.to(torch.float8_e4m3fn)},
    "a negative view": {"x": torch.complex(X, -X).conj().imag},
    "a mask as a list": {"train_mask": [True] * 4},
    "unknown keys of any size": {"a": torch.ones(1).expand(10**13), "b": torch.ones(3, device="meta")},
    "an unknown key, sparse, with one entry 3 * 10^9 times": {"a": repeated(3 * 10**9)},
    "an unknown key of lists of the same lists": {"a": laughs(), "b": in_itself()},
    "rows that share their numbers": {"x": torch.ones(13).as_strided((4, 10), (1, 1))},
    "sparse in columns, bfloat16": {"x": quiet(X.bfloat16().to_sparse_csc)},
}


@pytest.mark.filterwarnings("ignore::adar_runtime.errors.AdarWarning")  # of unknown keys
@pytest.mark.parametrize("name", UNUSUAL)
def test_an_unusual_graph_is_read(name: str, tmp_path: Path) -> None:
    graph = read_graph(save(tmp_path / "g.pt", **UNUSUAL[name]))
    assert np.array_equal(graph.rows(0, 4), X)


def test_numbers_in_another_byte_order_are_read(tmp_path: Path) -> None:
    """A file from a computer that stores the highest byte first."""
    x = torch.arange(40.0).reshape(4, 10)
    save(tmp_path / "g.pt", x=x, y=torch.arange(4), train_mask=torch.tensor([True, False, True, False]))
    sizes = {"g/data/0": "4", "g/data/1": "8", "g/data/2": "8"}

    def turned(name: str, content: bytes) -> bytes:
        if name in sizes:
            return np.frombuffer(content, f"<u{sizes[name]}").astype(f">u{sizes[name]}").tobytes()
        return b"big" if name == "g/byteorder" else content

    rewrite(tmp_path / "g.pt", tmp_path / "h.pt", turned)
    graph = read_graph(tmp_path / "h.pt")
    assert np.array_equal(graph.features, x)
    assert graph.labels.tolist() == [0, 1, 2, 3]
    assert graph.train_mask.tolist() == [[True, False, True, False]]


def test_a_boolean_is_true_or_false(tmp_path: Path) -> None:
    """Any byte but 0 is true: a boolean of another byte would be neither."""
    save(tmp_path / "g.pt", y=torch.arange(4), train_mask=torch.tensor([True, False, True, False]))
    other = bytes([2, 0, 255, 0])
    rewrite(tmp_path / "g.pt", tmp_path / "h.pt", lambda name, old: other if name == "g/data/3" else old)
    mask = read_graph(tmp_path / "h.pt").train_mask
    assert (mask.view(np.uint8).tolist(), mask.sum()) == ([[1, 0, 1, 0]], 2)
