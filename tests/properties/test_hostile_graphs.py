"""Any input: the result of the plain model, or an AdarError."""

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import adar_runtime
from adar_runtime import Bundle, Final, Graph, read_graph, write_graph
from adar_runtime.bundle import memory
from adar_runtime.errors import AdarError, DivergedError, GraphError
from adar_runtime.graph import MASKS, SparseRows
from adar_runtime.loop.schedule import times
from adar_train import load_run
from adar_train.model import AdaR
from adar_train.tensors import GraphTensors
from tests.properties.graphs import FEATURES, Drawn, graphs, many

STEPS = 4
LARGE = 16  # larger features saturate every softmax, and rounding decides the result
HUGE = 1e6  # smaller features must give finite results


@pytest.fixture(scope="module")
def bundle(described_bundle: Path) -> Bundle:
    return adar_runtime.load(described_bundle, "onnxruntime-cpu", threads=1)


@pytest.fixture(scope="module")
def model(described_run: Path) -> AdaR:
    found = load_run(described_run).model
    assert isinstance(found, AdaR)
    return found


@torch.no_grad()
def reference(model: AdaR, graph: Graph) -> np.ndarray:
    """The model as in the paper."""
    tensors = GraphTensors.of(graph)
    *_, last = model.trajectory(tensors, times(STEPS))
    return model.scores(last, tensors).numpy()


def assert_correct_or_diverged(bundle: Bundle, model: AdaR, graph: Graph) -> None:
    """The scores are those of the plain model, or inference diverged on huge features."""
    largest = max(np.abs(graph.rows(0, graph.nodes)).max(), np.abs(graph.target_features).max())
    try:
        got = bundle.run(graph, STEPS, Final()).scores
    except DivergedError as error:
        assert_one_line(error)
        assert largest > HUGE
        return
    assert np.isfinite(got).all()
    if largest <= LARGE:
        expected = reference(model, graph)
        assert np.allclose(got, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max() + 1e-6)


def assert_one_line(error: AdarError) -> None:
    assert 0 < len(str(error)) < 500
    assert len(str(error).splitlines()) == 1


@many
@given(drawn=graphs(wild=True))
def test_a_graph_is_refused_or_gives_the_right_scores(drawn: Drawn, bundle: Bundle, model: AdaR) -> None:
    try:
        graph = drawn.graph()
    except GraphError as error:
        assert_one_line(error)
        graph = None
    assert (graph is not None) == drawn.valid
    if graph is not None:
        assert_correct_or_diverged(bundle, model, graph)


@many
@given(drawn=graphs())
def test_a_valid_graph_gives_the_scores_of_the_plain_model(drawn: Drawn, bundle: Bundle, model: AdaR) -> None:
    assert drawn.valid
    assert_correct_or_diverged(bundle, model, drawn.graph())


@pytest.mark.parametrize("targets", [1, 500, pytest.param(10_000, marks=pytest.mark.torture)])
def test_one_class_and_ten_thousand(targets: int, bundle: Bundle, model: AdaR) -> None:
    random = np.random.default_rng(0)
    graph = Graph(
        random.normal(size=(5, FEATURES)),
        random.integers(0, 5, (2, 8)),
        target_features=random.normal(size=(targets, FEATURES)),
    )
    assert_correct_or_diverged(bundle, model, graph)


def test_more_classes_than_fit_into_memory_are_refused(bundle: Bundle) -> None:
    """Attention between all pairs of 100,000 targets takes 10^10 numbers."""
    graph = Graph(
        np.ones((5, FEATURES)),
        np.zeros((2, 0), int),
        target_features=np.ones((100_000, FEATURES), np.float32),
    )
    assert memory.needed_bytes(graph, bundle.manifest) > 8 * 10**10
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ADAR_MAX_BYTES", str(32 * 2**30))
        with pytest.raises(GraphError, match="would need about"):
            bundle.run(graph, 2)


@many
@given(drawn=graphs(), suffix=st.sampled_from([".npz", ".pt"]))
def test_a_written_graph_is_read_again(
    drawn: Drawn, suffix: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    graph, path = drawn.graph(), tmp_path_factory.mktemp("graphs") / f"g{suffix}"
    write_graph(path, graph)
    again = read_graph(path)
    for name in ("features", "edge_index", "target_features", *MASKS):
        assert np.array_equal(getattr(graph, name), getattr(again, name)), name


anything = st.one_of(
    st.none(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.lists(st.integers(-3, 3), max_size=4),
    st.lists(st.lists(st.floats(width=32), max_size=3), max_size=3),
    st.builds(np.zeros, st.tuples(st.integers(0, 3), st.integers(0, 3), st.integers(0, 2))),
    st.just(np.array(["a", "b"])),
    st.just(np.array([object()])),
    st.just(np.array([1 + 2j])),
    st.just(np.array(["2020-01-01"], "datetime64[D]")),
)


@many
@given(
    arguments=st.fixed_dictionaries(
        {"features": anything, "edge_index": anything},
        optional=dict.fromkeys(
            ["labels", "train_mask", "target_features", "class_names", "pairs", "level"], anything
        ),
    )
)
def test_any_arguments_give_a_graph_or_a_graph_error(arguments: dict) -> None:
    try:
        assert Graph(**arguments).nodes > 0
    except GraphError as error:
        assert_one_line(error)


@many
@given(starts=anything, columns=anything, values=anything, rows=st.integers(), width=st.integers())
def test_any_arguments_give_sparse_rows_or_a_graph_error(
    starts, columns, values, rows: int, width: int
) -> None:
    try:
        sparse = SparseRows(starts, columns, values, (rows, width))
        assert sparse.dense(0, rows).shape == (rows, width)
    except GraphError as error:
        assert_one_line(error)


@many
@given(budget=anything, stop=anything, solver=anything, threads=anything)
def test_any_invalid_argument_is_an_adar_error(
    budget, stop, solver, threads, bundle: Bundle, described_bundle: Path
) -> None:
    graph = Graph(np.ones((2, FEATURES)), np.zeros((2, 0), int), target_features=np.ones((2, FEATURES)))
    for argument in ({"budget": budget}, {"stop": stop}, {"solver": solver}):
        try:
            next(bundle.loop(graph, **argument))
        except AdarError as error:
            assert_one_line(error)
        else:
            (name,) = argument
            assert {"budget": type(budget) is int, "stop": stop is None, "solver": False}[name]
    try:
        adar_runtime.load(described_bundle, threads=threads)
    except AdarError as error:
        assert_one_line(error)
    else:
        assert threads is None or isinstance(threads, int)
