"""The server's side of the page: its files, what it can choose from, and runs as events."""

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_deploy.paths import PRETRAINED, named_bundle
from adar_runtime import Graph, load, write_graph
from adar_runtime.bundle.manifest import Manifest
from adar_runtime.graph.synthetic import make, minesweeper
from adar_runtime.selftest import packaged
from adar_serve import Limits, Settings
from adar_serve.page import trajectory
from adar_serve.page.samples import communities, samples_for
from tests.in_context_graphs import block_graph
from tests.serve.servers import Running, running, tensors

ROOT = Path(__file__).parents[2]
STATIC = ROOT / "serve/adar_serve/page/static"
VENDOR = STATIC / "vendor"
LIBRARIES = json.loads((VENDOR / "libraries.json").read_text())


def events(text: str) -> list[tuple[str, dict[str, Any]]]:
    parts = [each.split("\n") for each in text.strip().split("\n\n")]
    return [(name.removeprefix("event: "), json.loads(data.removeprefix("data: "))) for name, data in parts]


def explore(
    served: Running, model: str, content: bytes = b"", **query: Any
) -> list[tuple[str, dict[str, Any]]]:
    response = served.http.post(f"/explore/{model}", params=query, content=content)
    assert response.status_code == 200, response.text
    assert response.headers["content-type"].startswith("text/event-stream")
    return events(response.text)


def named(found: list[tuple[str, dict[str, Any]]], name: str) -> list[dict[str, Any]]:
    return [content for each, content in found if each == name]


# Files ---------------------------------------------------------------------------------------------------


def test_the_page_and_its_files_have_a_strict_policy(served: Running) -> None:
    page = served.http.get("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    links = re.findall(r'(?:src|href)="(page/[^"]+)"', page.text)
    assert {Path(each).suffix for each in links} == {".svg", ".css", ".js", ".json"}
    for response in (page, *(served.http.get("/" + each) for each in links)):
        assert response.status_code == 200
        policy = response.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self';")
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert not re.search(r"<script>|<style|\son\w+=|\sstyle=|https?://", page.text)


def test_modules_import_only_files_of_the_page() -> None:
    for path in STATIC.glob("*.js"):
        for name in re.findall(r'from "([^"]+)"', path.read_text()):
            assert (STATIC / name).is_file(), f"{path.name} imports {name}"
        assert len(path.read_text().splitlines()) <= 350


def test_a_file_that_the_browser_has_is_not_sent_again(served: Running) -> None:
    first = served.http.get("/page/page.css")
    again = served.http.get("/page/page.css", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("name", ["none.js", "../routes.py", "%2e%2e/routes.py", "vendor", ""])
def test_other_files_are_not_there(served: Running, name: str) -> None:
    assert served.http.get(f"/page/{name}").status_code == 404


def test_libraries_have_their_hashes_and_licences() -> None:
    listed = {name: digest for library in LIBRARIES for name, digest in library["files"].items()}
    found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in VENDOR.iterdir()}
    assert listed == {name: digest for name, digest in found.items() if name != "libraries.json"}
    for library in LIBRARIES:
        licences = "".join((VENDOR / name).read_text() for name in library["files"] if "LICENSE" in name)
        assert library["license"] == "MIT"
        assert "Permission is hereby granted, free of charge" in licences
        for name, licence in library.get("contains", {}).items():
            version, kind = licence.split(" ")
            assert f"{name} {version} ({kind})" in licences


def test_style_elements_of_libraries_are_allowed_by_their_hashes() -> None:
    for library in LIBRARIES:
        text = "".join((VENDOR / name).read_text() for name in library["files"] if name.endswith(".js"))
        styles = re.findall(r'"((?:\.[\w-]+)+ (?:canvas )?\{(?:[^"\\]|\\.)*)"', text)
        digests = {hashlib.sha256(json.loads(f'"{style}"').encode()).digest() for style in styles}
        allowed = [f"sha256-{base64.b64encode(digest).decode()}" for digest in digests]
        assert sorted(allowed) == sorted(library.get("inline_styles", []))


def test_colours_are_those_of_the_report() -> None:
    report = (ROOT / "adar_deploy/report/charts.css").read_text().split("@media print")[0]
    page = (STATIC / "page.css").read_text()
    colours = re.findall(r"--[\w-]+: #[0-9a-f]{6};", report)
    assert colours == [each for each in re.findall(r"--[\w-]+: #[0-9a-f]{6};", page) if "problem" not in each]


def test_without_the_page(bundle_folder: Path, tmp_path: Path) -> None:
    tokens = tmp_path / "tokens"
    tokens.write_text("a-token-of-the-test\n")
    settings = Settings(port=0, grpc_port=None, drain_seconds=0, page=False, tokens=tokens)
    with running([f"board={bundle_folder}"], settings) as found:
        assert found.http.get("/").status_code == 404
        assert found.http.get("/page/main.js").status_code == 404
        assert "/explore" not in found.http.get("/openapi.json").json()["paths"]


# Choices -------------------------------------------------------------------------------------------------


def test_choices_of_each_model(served: Running, board: Graph) -> None:
    found = served.http.get("/explore").json()
    models = {each["name"]: each for each in found["models"]}
    assert [each["name"] for each in models["board"]["samples"]] == ["minesweeper", "communities"]
    assert [each["name"] for each in models["described"]["samples"]] == ["communities"]
    assert models["board"]["samples"][0]["nodes"] == [400, 1000, 2500]  # the server takes 5,000
    assert models["board"]["features"] == board.width
    assert models["board"]["solvers"][:2] == ["auto", "euler"]
    assert models["board"]["exit"] in models["board"]["exits"]


def manifest_for(graph: Graph, template: Manifest) -> Manifest:
    return replace(template, features=graph.width, targets=graph.targets, class_names=graph.class_names)


@pytest.mark.parametrize("family", ["minesweeper", "chain", "tree", "blocks"])
def test_a_family_is_a_sample_of_the_models_that_it_trains(family: str, bundle_folder: Path) -> None:
    template = load(bundle_folder, "onnxruntime-cpu", 1).manifest
    manifest = manifest_for(make(family), template)
    sample = samples_for(manifest, 2500)[family]
    graph = sample.make(sample.sizes[0], 3)
    assert (graph.width, graph.targets) == (manifest.features, manifest.targets)
    others = replace(manifest, class_names=tuple(f"other {i}" for i in range(graph.targets)))
    assert family not in samples_for(others, 2500)
    assert family not in samples_for(replace(manifest, features=graph.width + 1), 2500)


def test_communities_are_for_every_model(described_bundle: Path, tmp_path: Path) -> None:
    bundles = {name: path for name, path in packaged.unpack(tmp_path).items() if name.endswith("fp32")}
    assert len(bundles) >= 3
    for path in (*bundles.values(), described_bundle):
        bundle = load(path, "onnxruntime-cpu", 1)
        graph = communities(bundle.manifest, 400, 1)
        assert len(bundle.run(graph, 2).scores) == graph.outputs
        assert (graph.labels is None) == (bundle.manifest.targets is not None)


# Runs ----------------------------------------------------------------------------------------------------


def test_a_run_sends_the_graph_its_steps_frames_and_the_answer(served: Running, bundle_folder: Path) -> None:
    found = explore(served, "board", sample="minesweeper", nodes=400, seed=5, max_steps=100, exit="final")
    (graph,), steps, frames = named(found, "graph"), named(found, "step"), named(found, "frame")
    (answer,) = named(found, "answer")
    board = make("minesweeper", nodes=400, seed=5)
    assert (graph["nodes"], graph["edges"], graph["drawing"]["side"]) == (400, board.edges, 20)
    assert len(graph["drawing"]["edges"]) == board.edges  # half of the edges, two numbers each
    assert graph["class_names"] == ["safe", "mine"]
    assert [each["step"] for each in steps] == list(range(101))
    assert len(frames) == trajectory.FRAMES + 1
    states = {}
    loop = load(bundle_folder, "onnxruntime-cpu", 1).loop(board, 100, "final")
    for step in loop:
        states[step.index] = step.scores()
    for frame in (*frames, answer["frame"]):
        scores = states[frame["step"]]
        assert frame["prediction"] == scores.argmax(axis=1).tolist()
        assert frame["counts"] == np.bincount(scores.argmax(axis=1), minlength=2).tolist()
        assert frame["accuracy"] == pytest.approx((scores.argmax(axis=1) == board.labels).mean())
        largest = np.exp(scores - scores.max(axis=1, keepdims=True))
        largest = (largest / largest.sum(axis=1, keepdims=True)).max(axis=1)
        assert frame["certainty"] == pytest.approx(100 * largest, abs=0.51)
    assert answer["why"] == loop.result().stop_reason.value
    assert served.log()[-1]["cell_calls"] == 100


def test_runs_of_the_page_are_in_the_statistics(served: Running) -> None:
    def counts() -> list[int]:
        (found,) = served.http.get("/v2/models/board/stats").json()["model_stats"]
        kinds = found["inference_stats"]
        return [
            found["inference_count"],
            found["execution_count"],
            kinds["success"]["count"],
            kinds["fail"]["count"],
        ]

    before = counts()
    explore(served, "board", sample="minesweeper", nodes=400, max_steps=2)
    assert counts() == [before[0] + 1, before[1] + 1, before[2] + 1, before[3]]
    assert served.http.post("/explore/board", content=b"{}").status_code == 400
    assert counts() == [before[0] + 1, before[1] + 1, before[2] + 1, before[3] + 1]


def test_a_large_graph_has_counts_and_no_rows(served: Running, tmp_path: Path) -> None:
    graph = minesweeper(side=56)
    graph = replace(graph, edge_index=graph.edge_index[:, :9000])
    assert graph.nodes > trajectory.DRAWN_NODES
    write_graph(tmp_path / "graph.npz", graph)
    found = explore(served, "board", (tmp_path / "graph.npz").read_bytes(), max_steps=3)
    assert "drawing" not in named(found, "graph")[0]
    for frame in (*named(found, "frame"), named(found, "answer")[0]["frame"]):
        assert sum(frame["counts"]) == graph.nodes
        assert "prediction" not in frame


def test_a_file_a_request_and_a_kept_graph_give_one_answer(
    served: Running, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "graph.npz", board)
    content = (tmp_path / "graph.npz").read_bytes()
    assert served.http.put("/graphs/kept?model=board", content=content).status_code == 201
    assert "kept" in served.http.get("/explore").json()["models"][0]["graphs"]
    request = json.dumps({"inputs": tensors(board)}).encode()
    runs = [
        explore(served, "board", content, max_steps=9),
        explore(served, "board", request, max_steps=9),
        explore(served, "board", graph="kept", max_steps=9),
    ]
    frames = [named(found, "answer")[0]["frame"] for found in runs]
    assert frames[0]["prediction"] == frames[1]["prediction"] == frames[2]["prediction"]
    served.http.delete("/graphs/kept")


def test_a_described_model_knows_the_labels_of_communities(served: Running) -> None:
    found = explore(served, "described", sample="communities", nodes=400, max_steps=4)
    assert named(found, "graph")[0]["class_names"][:2] == ["community 0", "community 1"]
    assert 0 <= named(found, "answer")[0]["frame"]["accuracy"] <= 1


def test_the_pretrained_model_takes_any_features_and_is_not_scored_on_labels_that_it_knows(
    tmp_path: Path,
) -> None:
    graph = block_graph()
    assert graph.train_mask is not None
    wrong = np.where(graph.train_mask[0], graph.labels, (graph.labels + 1) % graph.targets)
    write_graph(tmp_path / "graph.npz", replace(graph, labels=wrong, target_features=None))
    with running([f"pretrained={named_bundle(PRETRAINED)}"]) as found:
        assert found.http.get("/explore").json()["models"][0]["features"] is None
        done = explore(found, "pretrained", (tmp_path / "graph.npz").read_bytes(), max_steps=4)
    (answer,) = named(done, "answer")
    right = np.array(answer["frame"]["prediction"]) == wrong
    scored = ~graph.train_mask[0]
    assert right[scored].mean() < right.mean()
    assert answer["frame"]["accuracy"] == pytest.approx(right[scored].mean())


@pytest.mark.parametrize(
    ("query", "content", "message"),
    [
        ({"sample": "chess"}, b"", "there is no sample 'chess': choose minesweeper, communities"),
        ({"sample": "minesweeper", "nodes": "7"}, b"", "nodes is 7: this sample has 400, 1,000, 2,500"),
        ({"sample": "minesweeper", "seed": "-1"}, b"", "seed is '-1', not a whole number"),
        ({"sample": "minesweeper", "max_steps": "0"}, b"", "max_steps is 0: choose 1 to 2,000,000"),
        ({"sample": "minesweeper", "solver": "magic"}, b"", "magic"),
        ({"sample": "minesweeper", "exit": "never"}, b"", "never"),
        ({"graph": "absent"}, b"", "there is no graph 'absent'"),
        ({}, b"", "the file is neither a .npz graph nor the JSON of a request"),
        ({}, b"PK not a zip", "not a readable .npz"),
        ({}, b'{"inputs": []}', "the input x is missing"),
    ],
)  # fmt: skip
def test_what_cannot_run_has_a_message(
    served: Running, query: dict[str, str], content: bytes, message: str
) -> None:
    response = served.http.post("/explore/board", params=query, content=content)
    assert 400 <= response.status_code < 500
    assert message in response.json()["error"]


def test_a_graph_of_another_model_is_refused(served: Running, tmp_path: Path) -> None:
    write_graph(tmp_path / "graph.npz", make("tree", nodes=1000))
    response = served.http.post("/explore/board", content=(tmp_path / "graph.npz").read_bytes())
    assert response.json() == {"error": "the graph has 4 features, the model takes 10"}


def test_pages_of_other_sites_cannot_start_runs(served: Running) -> None:
    query = {"sample": "minesweeper", "max_steps": "1"}
    for site, status in {"cross-site": 403, "same-site": 403, "same-origin": 200, "none": 200}.items():
        response = served.http.post("/explore/board", params=query, headers={"sec-fetch-site": site})
        assert response.status_code == status
    assert served.http.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200


def test_a_small_server_offers_small_samples(bundle_folder: Path) -> None:
    settings = Settings(port=0, grpc_port=None, drain_seconds=0, limits=Limits(nodes=300))
    with running([f"board={bundle_folder}"], settings) as found:
        assert found.http.get("/explore").json()["models"][0]["samples"] == []
