"""Hostile tensors in `.pt` files: views, sparse matrices, unusual kinds, and forged descriptions."""

from pathlib import Path

import numpy as np
import pytest
import torch

from adar_runtime import read_graph
from tests.attacks.pt_files import Forged, Sparse, X, assert_refused, quiet, save


def tall(rows: int) -> torch.Tensor:
    """A sparse matrix whose row pointers alone exceed the memory."""
    return torch.sparse_coo_tensor(torch.tensor([[0], [0]]), torch.ones(1), (rows, 10), check_invariants=True)


def repeated(entries: int) -> torch.Tensor:
    """A sparse matrix that repeats one entry."""
    columns, values = torch.zeros(2, 1, dtype=torch.long).expand(2, entries), torch.ones(1).expand(entries)
    return torch.sparse_coo_tensor(columns, values, (4, 10), check_invariants=False)


def outside() -> torch.Tensor:
    """A sparse matrix of four rows with an entry in row 9."""
    return torch.sparse_coo_tensor(torch.tensor([[9], [0]]), torch.ones(1), (4, 10), check_invariants=False)


def wrapping() -> torch.Tensor:
    """A sparse matrix whose counts per column add up to its entries only modulo 2^64."""
    starts = torch.tensor([0, 2**62, -(2**63), -(2**62), 3])
    return quiet(
        lambda: torch.sparse_csc_tensor(
            starts, torch.zeros(3).long(), torch.ones(3), (4, 4), check_invariants=False
        )
    )


def quantised() -> torch.Tensor:
    return quiet(lambda: torch.quantize_per_tensor(X, 0.1, 0, torch.qint8))


class Mine(torch.Tensor):
    pass


BEYOND = "larger than its storage"


FORGERIES: dict[str, tuple[dict, str]] = {
    "a negative size": ({"size": (-4, 10)}, "damaged"),
    "a negative stride": ({"stride": (-10, 1)}, "damaged"),
    "a negative offset": ({"offset": -1}, "damaged"),
    "a size that is True": ({"size": (True, 10)}, "damaged"),
    "a size that is a fraction": ({"size": (4.0, 10)}, "damaged"),
    "a size of 65 bits": ({"size": (2**65, 10), "stride": (0, 0)}, "damaged"),
    "sizes in a list": ({"size": [4, 10]}, "damaged"),
    "65 dimensions": ({"size": (1,) * 65, "stride": (1,) * 65}, "damaged"),
    "more sizes than strides": ({"stride": (1,)}, "damaged"),
    "an offset beyond the end": ({"offset": 1}, BEYOND),
    "a stride beyond the end": ({"stride": (11, 1)}, BEYOND),
    "10^9 rows": ({"size": (10**9, 10)}, BEYOND),
    "2^124 numbers that are one": ({"size": (2**62, 2**62), "stride": (0, 0)}, "ADAR_MAX_BYTES"),
    "a storage that claims more than it has": ({"count": 41}, BEYOND),
    "a storage of 2^62 numbers": ({"count": 2**62}, BEYOND),
    "a storage of -1 numbers": ({"count": -1}, "damaged"),
    "a storage that is not there": ({"key": "9"}, BEYOND),
    "a storage in another folder": ({"key": "../data/0"}, BEYOND),
    "a storage by its absolute path": ({"key": "/etc/passwd"}, BEYOND),
    "a storage by a number": ({"key": 0}, "damaged"),
}


ATTACKS = {
    "a view of one byte, 2 GB after conversion": (
        {"edge_index": torch.zeros(1, dtype=torch.uint8).expand(2, 10**8)},
        "would unpack",
    ),
    "sparse in columns whose differences wrap around": ({"x": wrapping()}, "do not rise"),
    "a view of one number, 4 TB large": ({"x": torch.ones(1, 1).expand(10**8, 10**4)}, "ADAR_MAX_BYTES"),
    "labels that are one number": ({"y": torch.ones(1, dtype=torch.long).expand(10**11)}, "ADAR_MAX_BYTES"),
    "a negative view of one number, 4 GB": (
        {"x": torch._neg_view(torch.ones(1, 1).expand(10**9, 1))},
        "ADAR_MAX_BYTES",
    ),
    "a conjugate view of one number, 8 GB": (
        {"x": torch.ones(1, 1, dtype=torch.complex64).expand(10**9, 1).conj()},
        "ADAR_MAX_BYTES",
    ),
    "sparse, with one entry 3 * 10^9 times": ({"x": repeated(3 * 10**9)}, "ADAR_MAX_BYTES"),
    "sparse, with 10^13 rows": ({"x": tall(10**13)}, "ADAR_MAX_BYTES"),
    "sparse, of three dimensions": ({"x": torch.ones(2, 2, 2).to_sparse()}, "not [rows, columns]"),
    "sparse, with a row that does not exist": ({"x": outside()}, "outside its 4 rows"),
    "sparse in blocks": ({"x": quiet(lambda: X.to_sparse_bsr((2, 2)))}, "in blocks"),
    "sparse in one dimension": ({"x": X.to_sparse(1)}, "do not fit together"),
    "sparse, with indices that are floats": ({"x": Sparse(indices=(2, 3))}, "not integers"),
    "sparse, with indices of another length": ({"x": Sparse(indices=(2, 4))}, "do not fit together"),
    "quantised": ({"x": quantised()}, "_rebuild_qtensor"),
    "of a subclass": ({"x": X.as_subclass(Mine)}, "could run code"),
    "nested": ({"x": quiet(lambda: torch.nested.nested_tensor([X, X]))}, "could run code"),
    "in half complex numbers": (
        {"x": quiet(lambda: X.to(torch.complex32))},
        "torch.complex32, which numpy does not have",
    ),
    **{f"with {name}": ({"x": Forged(**given)}, message) for name, (given, message) in FORGERIES.items()},
    "sparse target_x": ({"target_x": torch.eye(10).to_sparse()}, "only x may be sparse"),
    "without content": ({"x": torch.ones(3, 2, device="meta")}, "without data"),
    "complex": ({"x": torch.ones(4, 10, dtype=torch.complex64)}, "not numbers"),
}


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_is_one_graph_error(name: str, tmp_path: Path) -> None:
    entries, message = ATTACKS[name]
    assert_refused(read_graph, save(tmp_path / "g.pt", **entries), message)


def test_forged_descriptions_can_be_valid(tmp_path: Path) -> None:
    """Otherwise none of the forgeries could fail for its own reason."""
    assert np.array_equal(read_graph(save(tmp_path / "g.pt", x=Forged())).features, X)
