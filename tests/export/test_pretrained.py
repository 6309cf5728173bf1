"""The equivariant model, its export, and the bundle in the package."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import adar_deploy
from adar_export import pretrained
from adar_export.bf16_emulation import opened
from adar_export.equivariant_cell import build_equivariant_models
from adar_export.pretrained import weights_in_bundle
from adar_export.validate import compare
from adar_runtime import Bundle, Graph, load, read_graph, write_graph
from adar_runtime.bundle import metadata
from adar_runtime.bundle.reading import read_bundle, read_manifest
from adar_runtime.errors import GraphError, UsageError
from adar_runtime.in_context.start import start
from adar_train import pretraining
from adar_train.data.context_episodes import block_model, draw_episode, source_of
from adar_train.equivariant import (
    ABLATIONS,
    INVARIANTS,
    NODE_INVARIANTS,
    PLAIN,
    RELATIONS,
    STEP_INFO,
    EquivariantAdaR,
    PlacedGraph,
)
from adar_train.pretraining import Pretraining, Task, episode_loss
from tests.in_context_graphs import block_graph, half_labelled, with_random_gates

PACKAGED = Path(adar_deploy.__file__).parent / "pretrained"


@torch.no_grad()
def scores(model: EquivariantAdaR, graph: PlacedGraph, times: tuple[float, ...]) -> torch.Tensor:
    *_, last = model.trajectory(graph, times)
    return model.scores(last, graph)


def test_untrained_gates_give_the_scores_of_the_start() -> None:
    graph = block_graph()
    found = scores(EquivariantAdaR(16), PlacedGraph.of(graph, 16), (0.0, 0.5, 1.0))
    np.testing.assert_allclose(found, start(graph, 16).scores, atol=1e-5)


def test_rotation_equivariance() -> None:
    model, graph = with_random_gates(), PlacedGraph.of(block_graph(), 16)
    turn = torch.linalg.qr(torch.randn(16, 16)).Q
    first = graph.first
    turned = replace(graph, first=first._replace(nodes=first.nodes @ turn, targets=first.targets @ turn))
    for times in ((0.0, 1.0), (0.0, 0.3, 0.6, 1.0)):
        torch.testing.assert_close(
            scores(model, turned, times), scores(model, graph, times), atol=1e-3, rtol=1e-3
        )


def test_known_classes_are_clamped() -> None:
    """Neighbours of a labelled node receive its class, whatever its features say."""
    model = EquivariantAdaR(16)
    with torch.no_grad():
        model.cell.node_gates[1].out.bias[3] = 1.0  # only the targets seen through the neighbours
    graph = PlacedGraph.of(replace(block_graph(), target_features=None), 16)
    wrong = graph.known.roll(1, dims=1)
    nodes = (graph.neighbours @ graph.known.sum(dim=1, keepdim=True))[:, 0] > 0
    before, after = (
        scores(model, replace(graph, known=known), (0.0, 1.0))[nodes] for known in (graph.known, wrong)
    )
    assert (before - after).abs().max() > 0.1


def test_joined_graphs_have_the_scores_of_each_graph() -> None:
    """Padding of nodes and of classes changes nothing."""
    model, random = with_random_gates(), np.random.default_rng(0)
    for labelled in (False, True):
        episodes = [draw_episode([], random, labelled=labelled) for _ in range(3)]
        assert len({graph.targets for graph in episodes}) > 1
        graphs = [PlacedGraph.of(graph, 16) for graph in episodes]
        together = scores(model, PlacedGraph.joined(graphs), (0.0, 0.4, 1.0))
        for graph, found in zip(graphs, together, strict=True):
            n, c = graph.known.shape
            torch.testing.assert_close(
                found[:n, :c], scores(model, graph, (0.0, 0.4, 1.0)), atol=1e-3, rtol=1e-3
            )
            assert (found.argmax(dim=1)[:n] < c).all()


def test_each_task_has_gates_of_its_own() -> None:
    """Descriptions train the first set and labels the second one; neither changes the other."""
    for labelled in (False, True):
        model = EquivariantAdaR()
        random = np.random.default_rng(1)
        task = Task.joined([Task.of(draw_episode([], random, labelled=labelled)) for _ in range(2)])
        episode_loss(model, task, 4, 2)[0].backward()
        for gates in (model.cell.node_gates, model.cell.target_gates):
            trained = [any(weight.grad is not None for weight in each.parameters()) for each in gates]
            assert trained == [not labelled, labelled]


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> tuple[EquivariantAdaR, Bundle]:
    folder, model = tmp_path_factory.mktemp("bundle"), with_random_gates()
    pretrained._write(folder, model, {"data": ["generated"]})
    return model, load(folder, threads=1)


def test_the_bundle_agrees_with_pytorch(bundle: tuple[EquivariantAdaR, Bundle]) -> None:
    model, exported = bundle
    graph = block_graph()
    graphs = {
        "both": graph,
        "labels": replace(graph, target_features=None),
        "descriptions": replace(graph, train_mask=None),
        "no edges": replace(graph, edge_index=np.zeros((2, 0), np.int64)),
    }
    report = compare(model, exported, graphs, (1, 10, 40), as_tensors=lambda g: PlacedGraph.of(g, 16))
    assert not report.problems()
    assert report.needed < 1e-4


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_half_precision_agrees_with_pytorch(tmp_path: Path, precision: str) -> None:
    model = with_random_gates()
    pretrained._write(tmp_path, model, {"data": ["generated"]}, precision)
    with opened(tmp_path, threads=1, made_here=True) as exported:
        graphs = {"both": block_graph()}
        report = compare(model, exported, graphs, (1, 10), as_tensors=lambda g: PlacedGraph.of(g, 16))
    assert not report.problems()
    assert report.needed > 1e-6  # the messages are really rounded


def test_int8_is_refused() -> None:
    with pytest.raises(UsageError, match="fp32, fp16, bf16"):
        build_equivariant_models(EquivariantAdaR(16), 17, "int8")


def test_weights_are_read_from_the_bundle(bundle: tuple[EquivariantAdaR, Bundle]) -> None:
    model, exported = bundle
    torch.testing.assert_close(dict(model.state_dict()), weights_in_bundle(exported.path))


def test_the_packaged_bundle_is_what_the_exporter_writes_from_its_weights(tmp_path: Path) -> None:
    """`make pretrained-bundle` reads the weights from the cell and changes none of their bits."""
    model, manifest = EquivariantAdaR(), read_manifest(PACKAGED)
    model.load_state_dict(weights_in_bundle(PACKAGED))
    written = pretrained._write(tmp_path, model, manifest.training, created_at=manifest.created_at)
    for file in written.file_names():
        assert (tmp_path / file).read_bytes() == (PACKAGED / file).read_bytes(), file


def test_a_bundle_is_written_again_with_its_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "sample_graphs", lambda *_: {"generated, labels": block_graph()})
    monkeypatch.setattr(pretrained, "PROOF_SEEDS", 1)
    before = read_manifest(PACKAGED)
    after = pretrained.rewrite(PACKAGED, tmp_path / "again")
    assert (after.training, after.created_at) == (before.training, before.created_at)
    assert (tmp_path / "again" / "cell.onnx").read_bytes() == (PACKAGED / "cell.onnx").read_bytes()
    assert after.parity["batched"] < 1e-5


def neighbours_only(gate: float) -> EquivariantAdaR:
    """A model that moves every node towards the mean of its neighbours, or away from it."""
    model = EquivariantAdaR(16)
    with torch.no_grad():
        model.cell.node_gates[1].out.bias[0] = gate
    return model


@pytest.mark.parametrize(("gate", "strength"), [(1.0, 1.0), (-12.0, 0.0)], ids=["good", "harmful"])
def test_hidden_labels_decide_whether_the_model_moves(tmp_path: Path, gate: float, strength: float) -> None:
    pretrained._write(tmp_path, neighbours_only(gate), {"data": ["generated"]})
    exported, graph = load(tmp_path, threads=1), replace(block_graph(), target_features=None)
    result = exported.run(graph, 8)
    assert result.check is not None
    assert (result.check.strength, result.check.labels) == (strength, 12)
    of_start = start(graph, 16).scores
    assert np.allclose(result.scores, of_start, atol=1e-4) == (strength == 0)


def test_a_graph_without_known_labels_is_not_checked(bundle: tuple[EquivariantAdaR, Bundle]) -> None:
    assert bundle[1].run(replace(block_graph(), train_mask=None), 2).check is None


def test_fine_tuning_reads_only_labels_of_the_train_mask(tmp_path: Path) -> None:
    write_graph(tmp_path / "mine.npz", half_labelled())
    for all_labels, expected in ((False, 120), (True, 240)):
        source, is_described = source_of(tmp_path / "mine.npz", all_labels=all_labels)
        assert (len(source.chosen), is_described) == (expected, True)


def test_fine_tuning_needs_enough_labels(tmp_path: Path) -> None:
    write_graph(tmp_path / "mine.npz", block_graph())
    with pytest.raises(GraphError, match="12 labels"):
        source_of(tmp_path / "mine.npz", all_labels=False)


def test_the_bundle_takes_any_width(bundle: tuple[EquivariantAdaR, Bundle]) -> None:
    for width in (3, 16, 90):
        assert bundle[1].run(block_graph(width=width), 4).scores.shape == (240, 3)


def test_evaluation_scores_labels_that_the_model_did_not_see(bundle: tuple[EquivariantAdaR, Bundle]) -> None:
    found = bundle[1].evaluate(replace(block_graph(), target_features=None), budgets=[4])
    assert found.part == "test"
    assert "228" in found.counted


@pytest.mark.parametrize("gate", [1.0, -12.0], ids=["moves", "still"])
def test_evaluation_prepares_a_graph_once_and_gives_the_numbers_of_every_step(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, gate: float
) -> None:
    pretrained._write(tmp_path, neighbours_only(gate), {"data": ["generated"]})
    exported, graph = load(tmp_path, threads=1), replace(block_graph(), target_features=None)
    plain = [list(exported.loop(graph, budget, "final", "euler")) for budget in (3, 5)]
    prepared: list[Graph] = []
    prepare = exported.prepare
    monkeypatch.setattr(exported, "prepare", lambda one: prepared.append(one) or prepare(one))
    curves = exported.evaluate(graph, budgets=[3, 5]).curves
    assert len(prepared) == 1
    for curve, steps in zip(curves, plain, strict=True):
        assert curve.times == [step.time for step in steps]
        assert curve.alignment == [step.alignment for step in steps]
        assert curve.speeds == pytest.approx([step.motion.speed for step in steps])


def test_an_interrupted_pretraining_continues_with_the_same_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "SAVE_EVERY", 2)
    monkeypatch.setattr(pretraining, "EPISODES", 1)

    def stop(done: int, _gain: float) -> None:
        if done == 3:
            raise KeyboardInterrupt

    def weights(training: Pretraining) -> torch.Tensor:
        training.run([])
        return torch.cat([value.flatten() for value in training.model.state_dict().values()])

    whole = weights(Pretraining(tmp_path / "whole", 4, 0))
    with pytest.raises(KeyboardInterrupt):
        Pretraining(tmp_path / "parts", 4, 0).run([], stop)
    again = Pretraining(tmp_path / "parts", 4, 0)
    assert again.done == 2
    torch.testing.assert_close(weights(again), whole)


def test_kept_episodes_give_the_same_weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretraining, "EPISODES", 1)
    write_graph(graph := tmp_path / "graph.npz", half_labelled())
    runs = iter(range(10))

    def weights(episodes: Path | None, seed: int = 0) -> list[torch.Tensor]:
        training = Pretraining(tmp_path / str(next(runs)), 2, seed)
        training.run([graph], episodes=episodes)
        return [value.clone() for value in training.model.state_dict().values()]

    def same(one: list[torch.Tensor], other: list[torch.Tensor]) -> bool:
        return all(map(torch.equal, one, other))

    drawn, kept = weights(None), tmp_path / "episodes"
    assert same(weights(kept), drawn)
    files = {file: file.stat().st_mtime_ns for file in kept.rglob("*.safetensors")}
    assert len(files) == 4  # two updates, each with one episode of both tasks
    assert same(weights(kept), drawn)
    assert files == {file: file.stat().st_mtime_ns for file in kept.rglob("*.safetensors")}
    of_labels = sorted(file for file in files if file.name.startswith("labels"))
    of_labels[0].write_bytes(of_labels[1].read_bytes())
    assert not same(weights(kept), drawn)  # kept episodes are used
    weights(kept, seed=1)
    write_graph(graph, block_graph(seed=1))
    weights(kept)
    assert len([*kept.iterdir()]) == 3  # each seed and each content of the files has a folder of its own


@pytest.mark.parametrize("without", ABLATIONS)
def test_an_ablation_reads_nothing_of_what_it_is_without(
    tmp_path: Path, without: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pretraining, "EPISODES", 1)
    training = Pretraining(tmp_path, 1, 0, without)
    training.run([])
    for gates, has_labels in zip(training.model.cell.node_gates, (False, True), strict=True):
        read = {NODE_INVARIANTS[i] for i in torch.nonzero(gates.first.weight.abs().sum(dim=0))[:, 0]}
        assert read == {STEP_INFO: {*NODE_INVARIANTS}, RELATIONS: {*PLAIN}, INVARIANTS: set()}[without]
        assert bool(gates.step.weight.any()) == (without == RELATIONS and not has_labels)
        assert gates.out.weight.any()  # it was trained


def test_episodes_have_descriptions_or_labels() -> None:
    for seed in range(20):
        graph = draw_episode([], np.random.default_rng(seed), labelled=seed % 2 == 1)
        assert (graph.train_mask is not None) == (seed % 2 == 1)
        assert graph.target_features is not None or graph.train_mask is not None


def test_the_packaged_bundle_is_known_and_small() -> None:
    manifest, models = read_bundle(PACKAGED)  # refuses models that the exporter does not write
    assert manifest.in_context
    assert sum(file.stat().st_size for file in PACKAGED.iterdir()) < 1_000_000
    assert set(models) == {"encoder", "cell", "head"}
    assert manifest.batched_cell is not None
    assert manifest.parity["batched"] < 1e-5
    card = (PACKAGED / metadata.CARD).read_text(encoding="utf-8")
    assert "MIT" in card
    assert "any number of features per node" in card
    assert all(str(name) in card for name in manifest.training["data"])


@pytest.mark.parametrize("known", ["target_x", "labels", "both"])
def test_few_calls_of_the_packaged_model_give_the_predictions_of_300_steps(known: str) -> None:
    """The graph is not one of the proof's."""
    bundle, graph = load(PACKAGED), block_graph(nodes=1500, classes=5)
    graph = replace(graph, train_mask=None) if known == "target_x" else graph
    graph = replace(graph, target_features=None) if known == "labels" else graph
    few, many = bundle.run(graph), bundle.run(graph, solver="euler")
    assert few.steps <= 16 < many.steps == 300
    assert few.proof.startswith(f"in the export, {few.steps} calls gave ")
    assert (few.predictions == many.predictions).mean() >= 0.999


def test_the_packaged_model_answers(tmp_path: Path) -> None:
    graph = block_graph()
    write_graph(tmp_path / "graph.npz", graph)
    result = adar_deploy.pretrained(threads=1).predict(read_graph(tmp_path / "graph.npz"))
    hidden = ~graph.train_mask[0]  # type: ignore[index]
    assert (result.predictions == graph.labels)[hidden].mean() > 0.8


def test_generated_graphs_have_the_requested_size() -> None:
    graph: Graph = block_model(np.random.default_rng(0), nodes=50)
    assert graph.nodes == 50
