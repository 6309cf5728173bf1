"""adar-deploy report: one page that stands alone, of a run, of a bundle and of both."""

import json
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from adar_deploy.report import facts as report_facts
from adar_deploy.report.charts import Axis, Line, Mark, heat_grid, line_chart, scatter
from adar_deploy.report.page import page
from adar_runtime import Graph, write_graph
from adar_runtime.evaluation.metrics import confusion, roc_auc, roc_points
from adar_train import Fitted, ModelConfig, TrainConfig, save_run
from tests.bundles import edit
from tests.helpers import awake, random_graph

SECTIONS = (
    "Training",
    "Configuration",
    "Accuracy and alignment against time and budget",
    "Predictions",
    "Classes",
    "Reliability of the probabilities",
    "Beside a simple model",
    "Agreement with PyTorch",
    "Convergence and solvers",
    "Latency",
    "Environment",
)
ALONE = ("br", "circle", "line", "meta", "polyline", "rect")


class Reader(HTMLParser):
    """Fails on an element that is not closed, and notes what a browser would fetch or run."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []
        self.headings: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list) -> None:
        self.fetched += [
            f"{tag} {name}"
            for name, value in attrs
            if name in ("src", "href", "xlink:href", "data") and not (tag == "a" and value.startswith("#"))
        ]
        self.fetched += [tag] if tag in ("script", "link", "iframe", "img", "object") else []
        if tag not in ALONE:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


def test_a_bundle_and_its_run(adar, bundle_folder: Path, run_folder: Path, tmp_path: Path) -> None:
    code, out, err = adar(
        "report", bundle_folder, "--run", run_folder, "--budgets", "3,8", "-o", "page.html", "--json"
    )
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["report"] == "page.html"
    assert [len(curve["t"]) for curve in facts["curves"]] == [4, 9]
    assert facts["history"][0]["epoch"] == 1
    assert np.sum(facts["answers"]["confusion"]) == facts["graph"]["labelled"]["test"]
    area = np.trapezoid(*np.array(facts["answers"]["roc"]).T[::-1])
    assert area == pytest.approx(facts["evaluation"]["budgets"][-1]["at_exit"], abs=1e-3)
    euler = next(row for row in facts["latency"]["rows"] if row["solver"] == "euler")
    assert (euler["calls"], euler["same"]) == (facts["curves"][-1]["exit_step"], 1.0)
    text = (tmp_path / "page.html").read_text()
    (tile,) = re.findall(r"<dt>ROC-AUC, [^<]*</dt><dd>(.*?)</dd>", text)
    assert re.fullmatch(
        r"[\d.]+ %<small>95 % interval \[[\d., ]+\], at the stop step, budget 8</small>", tile
    )
    read = Reader(text)
    assert read.headings == list(SECTIONS)
    assert read.fetched == []
    assert "://" not in text.replace("http://www.w3.org/2000/svg", "")
    assert "prefers-color-scheme: dark" in text
    assert "@media print" in text
    assert "<th>time</th>" in text  # each cell has its unit
    assert "<th>seconds</th>" not in text


@pytest.mark.parametrize(
    ("spreads", "repeats", "said"),
    [
        ({"euler": (8, 9), "ab2": (2, 3), "adaptive": (4, 5)}, 3, ""),
        (
            {"euler": (8, 9), "ab2": (2, 5), "adaptive": (4, 6)},
            3,
            "; the times of adaptive overlap",
        ),
        (
            {"euler": (4, 9), "ab2": (2, 5), "adaptive": (4, 6)},
            3,
            "; the times of adaptive and euler overlap",
        ),
        ({"euler": (8, 8), "ab2": (2, 2)}, 1, "; one run each, so the spread is unknown"),
        ({"ab2": (2, 2)}, 1, ""),
    ],
)
def test_the_fastest_run_names_the_solvers_that_overlap(
    adar, bundle_folder: Path, spreads: dict, repeats: int, said: str
) -> None:
    facts = json.loads(adar("report", bundle_folder, "--json")[1])
    measured = {"calls": 9, "phases": {"loop": 1.0}, "same": 1.0, "best_time": 1.0}
    rows = [
        measured | {"solver": name, "seconds": sum(spread) / 2, "spread": list(spread)}
        for name, spread in spreads.items()
    ]
    refused = {"solver": "other", "refused": "not measured"}
    facts["latency"] = {"budget": 9, "backend": "it", "repeats": repeats, "rows": [refused, *rows]}
    (tile,) = re.findall(r"<dt>fastest run</dt><dd>(.*?)</dd>", page(facts))
    assert tile == f"{sum(spreads['ab2']) / 2:.2f} s<small>ab2, 9 calls{said}</small>"


def test_a_run_alone_says_what_an_export_would_add(adar, run_folder: Path, tmp_path: Path) -> None:
    code, out, err = adar("report", run_folder, "--budgets", "3")
    assert (code, err) == (0, "")
    assert "export the run" in out
    headings = Reader((tmp_path / "report.html").read_text()).headings
    assert headings == [*SECTIONS[:7], SECTIONS[-1]]


def test_a_run_finds_its_bundle_by_its_weights(
    adar, run_folder: Path, bundle_folder: Path, described_bundle: Path
) -> None:
    for bundle, found in ((bundle_folder, str(bundle_folder)), (described_bundle, None)):
        code, out, _ = adar("report", run_folder, "--bundle", bundle, "--budgets", "3", "--json")
        assert (code, json.loads(out)["bundle"]) == (0, found)
        unused = f"its weights are not those of the bundle {bundle}."
        assert any(unused in note for note in json.loads(out)["notes"]) == (found is None)
    code, out, _ = adar("report", bundle_folder, "--bundle", described_bundle, "--json")
    assert code == 0
    assert f"and not about the bundle {described_bundle}." in json.loads(out)["notes"][0]


@pytest.mark.parametrize("kind", ["bundle", "run"])
def test_a_model_that_is_replaced_during_the_report_is_refused(
    adar, run_folder: Path, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, *, kind: str
) -> None:
    """The page had the convergence of one bundle and the latency of another."""
    model = shutil.copytree(bundle_folder if kind == "bundle" else run_folder, tmp_path / "model")
    measure = report_facts.measure_on

    def replaced(*given: Any) -> Any:
        found = measure(*given)
        if kind == "bundle":
            edit(model, lambda manifest: manifest["training"].update(run="another"))
        else:
            config = json.loads((model / "config.json").read_text())
            (model / "config.json").write_text(json.dumps(config | {"data": ["another"]}))
        return found

    monkeypatch.setattr(report_facts, "measure_on", replaced)
    code, _, err = adar("report", model, run_folder / "graph.pt", "--budgets", "3")
    assert (code, err.count("\n")) == (2, 1)
    assert "was replaced while it was measured: run the command again" in err
    assert not (tmp_path / "report.html").exists()


def test_a_bundle_from_a_stranger_without_a_graph(adar, bundle_folder: Path, tmp_path: Path) -> None:
    code, out, _ = adar("report", bundle_folder)
    assert code == 0
    assert "name a graph" in out
    assert "Agreement with PyTorch" in (tmp_path / "report.html").read_text()


def test_graphs_without_labels_and_with_many_classes(adar, described_bundle: Path, tmp_path: Path) -> None:
    graph = random_graph(50, 80, classes=45)
    write_graph(tmp_path / "many.npz", graph)
    bare = Graph(graph.features, graph.edge_index, target_features=graph.target_features)
    write_graph(tmp_path / "bare.npz", bare)
    for name, said in (("many", "45 classes are too many"), ("bare", "no labels")):
        code, _, err = adar("report", described_bundle, f"{name}.npz", "--budgets", "2")
        assert (code, err) == (0, "")
        assert said in (tmp_path / "report.html").read_text()


def test_names_from_files_are_text_and_nothing_else(adar, described_bundle: Path, tmp_path: Path) -> None:
    graph = random_graph(30, 60)
    names = ("<script>alert(1)</script>", '"><img src=x>', "c")
    write_graph(
        tmp_path / "g.npz",
        Graph(
            graph.features,
            graph.edge_index,
            graph.labels,
            target_features=graph.target_features,
            class_names=names,
        ),
    )
    assert adar("report", described_bundle, "g.npz", "--budgets", "2")[0] == 0
    assert Reader((tmp_path / "report.html").read_text()).fetched == []


def test_many_graphs_with_one_label_each_are_measured_together(adar, tmp_path: Path) -> None:
    drawn = [random_graph(6, 12, seed=i, level="graph") for i in range(12)]
    graphs = [replace(one, labels=np.array([i % 2]), target_features=None) for i, one in enumerate(drawn)]
    model = awake(ModelConfig(graphs[0].width, 2, hidden=8, proxies=2, level="graph"))
    metrics = {"metric": "roc_auc", "split": 0, "exit": {"rule": "final"}}
    save_run(tmp_path / "run", Fitted(model, metrics, []), graphs[0], ["random"], TrainConfig())
    for index, graph in enumerate(graphs):
        write_graph(tmp_path / f"graph-{index}.npz", graph)
    files = sorted(path.name for path in tmp_path.glob("*.npz"))
    code, out, err = adar("report", "run", *files, "--budgets", "2", "--json")
    assert (code, err) == (0, "")
    facts = json.loads(out)
    assert facts["graph"]["graphs"] == 12
    facts["data"] = files
    assert "<h1>AdaR on graph-0.npz, graph-1.npz, graph-10.npz and 9 more</h1>" in page(facts)
    assert np.sum(facts["answers"]["confusion"]) == 12
    scored = json.loads(adar("evaluate", "run", *files, "--budgets", "2", "--json")[1])
    assert facts["evaluation"]["budgets"] == scored["budgets"]


def test_several_graphs_with_labels_of_nodes_need_several_reports(
    adar, run_folder: Path, board: Graph, tmp_path: Path
) -> None:
    for name in ("a.npz", "b.npz"):
        write_graph(tmp_path / name, board)
    code, _, err = adar("report", run_folder, "a.npz", "b.npz")
    assert code == 2
    assert "a report is about one graph, and 2 were given: write one for each" in err


@pytest.mark.parametrize(
    "nonsense", [{"parity": {"checks": 3}}, {"convergence": {"trials": [{}]}}, {"versions": {"a": [1]}}]
)
def test_what_a_stranger_says_of_a_bundle_is_shown_or_refused(
    adar, bundle_folder: Path, tmp_path: Path, nonsense: dict
) -> None:
    shutil.copytree(bundle_folder, tmp_path / "b")
    edit(tmp_path / "b", lambda manifest: manifest.update(nonsense))
    code, _, err = adar("report", "b")
    assert (code == 0) == ("versions" in nonsense)
    assert code == 0 or "has values that cannot be shown" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "neither a training run nor a bundle"),
        (["BUNDLE", "-o", "page.pdf"], "written as .html"),
        (["BUNDLE", "--run", "RUN"], "the weights differ"),
        (["BUNDLE", "missing.npz"], "no such file"),
        (["BUNDLE", "--budgets", "many"], "integers separated by commas"),
    ],
)
def test_mistakes_are_one_line(
    adar, described_bundle: Path, run_folder: Path, tmp_path: Path, arguments: list[str], message: str
) -> None:
    given = {"BUNDLE": described_bundle, "RUN": run_folder}
    code, out, err = adar("report", *(given.get(word, word) for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("*.html"))


def test_numbers_are_shown_beside_numbers() -> None:
    facts = {
        "data": [],
        "kind": "gcn",
        "notes": [],
        "run": None,
        "bundle": "b",
        "model": None,
        "training": None,
        "metrics": {},
    }
    facts |= {"exit": None, "history": None, "parity": None, "convergence": None, "made_with": None}
    facts |= {"environment": {}, "answers": {"numbers": [[0.0, 0.1], [1.0, 0.8]]}}
    text = page(facts)
    Reader(text)
    assert "Baseline gcn on an unknown graph" in text
    assert text.count('class="dot"') == 2


def places(drawing: str) -> list[tuple[float, float]]:
    (points,) = re.findall(r'<polyline points="([^"]*)"', drawing)
    return [tuple(map(float, pair.split(","))) for pair in points.split()]


def test_a_line_goes_where_its_numbers_are() -> None:
    """Equal ratios are equal ways on a logarithmic axis, and up is more."""
    drawing = line_chart(
        [Line("", [(1, 0.0), (10, 1.0), (100, 4.0)])],
        Axis("x", log=True),
        Axis("y"),
        [Mark(0, (10, 1.0), "here")],
        title="t",
    )
    (x1, y1), (x2, y2), (x3, y3) = places(drawing)
    assert x2 - x1 == pytest.approx(x3 - x2, abs=0.2)
    assert (y1 - y3) == pytest.approx(4 * (y1 - y2), abs=0.5)
    assert f'cx="{x2:.1f}" cy="{y2:.1f}"' in drawing


def test_what_has_no_place_on_an_axis_is_left_out() -> None:
    drawing = line_chart(
        [Line("", [(1, 0.0), (2, float("nan")), (3, 5.0), (4, 6.0)])],
        Axis("x"),
        Axis("y", log=True),
        title="t",
    )
    assert len(places(drawing)) == 2
    assert line_chart([Line("", [])], Axis("x"), Axis("y"), title="t") == ""
    assert len(places(line_chart([Line("", [(5, 5)])], Axis("x"), Axis("y"), title="t"))) == 1
    long = line_chart([Line("", [(i, i) for i in range(10_001)])], Axis("x"), Axis("y"), title="t")
    assert 200 < len(places(long)) <= 402
    assert 'class="heat"' in heat_grid([[1, 0], [0, 0]], ["a", "b"], title="t")
    assert scatter([(1.0, 1.0)], Axis("x"), Axis("y"), title="t")


def test_roc_and_confusion_agree_with_the_oracle() -> None:
    from sklearn.metrics import confusion_matrix, roc_curve

    random = np.random.default_rng(0)
    score, positive = random.integers(0, 9, 200).astype(np.float32), random.random(200) < 0.3
    misses, hits = roc_points(score, positive)
    expected = roc_curve(positive, score, drop_intermediate=False)
    assert np.allclose([misses, hits], expected[:2])
    assert np.trapezoid(hits, misses) == pytest.approx(roc_auc(score, positive), abs=1e-6)
    labels, predicted = random.integers(0, 4, (2, 100))
    assert np.array_equal(confusion(predicted, labels, 4), confusion_matrix(labels, predicted))


def test_the_contents_lead_to_every_section(adar, bundle_folder: Path, board: Graph, tmp_path: Path) -> None:
    write_graph(tmp_path / "board.npz", board)
    code, out, err = adar("report", bundle_folder, "board.npz", "--budgets", "3", "--json")
    assert (code, err) == (0, "")
    text, facts = (tmp_path / "report.html").read_text(), json.loads(out)
    targets = re.findall(r'<a href="#([^"]+)">', text)
    assert targets == re.findall(r'<section id="([^"]+)">', text)
    assert len(targets) == len(set(targets)) >= 9
    rows = facts["answers"]["by_class"]
    bins = facts["answers"]["reliability"]["bins"]
    assert sum(row["labels"] for row in rows) == sum(one["count"] for one in bins)
    for words in ("Macro-F1", "Expected calibration error", "Class balance", "● used", "ridge regression"):
        assert words in text
    assert 0 < facts["baseline"]["value"] <= 1
