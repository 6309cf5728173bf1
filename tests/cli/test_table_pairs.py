"""Tables with string ids: train, export, run and evaluate, as a user types them."""

import csv
import json
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import adar_export
import adar_train.config
from adar_deploy import TrainedModel
from adar_deploy.cli import main
from adar_runtime import load, read_graph
from adar_runtime.bundle.manifest import FILE_NAME, checksum_of
from adar_runtime.bundle.reading import read_manifest
from adar_runtime.bundle.run_files import GRAPH
from adar_runtime.errors import BundleError, UsageError

TRAIN = ("--epochs", 2, "--train-steps", 2, "--hidden", 8, "--proxies", 2, "--both-ways")
PEOPLE = ("train", "people.csv", "--edges", "people-friends.csv")
IDS = ("--id", "person", "--source", "who")


def write_people(folder: Path, name: str, people: int = 60, seed: int = 0, **changes: str) -> list[str]:
    """A table of people with string ids, a number, a category, a gap and a label; and a table of friends."""
    random = np.random.default_rng(seed)
    ids = [f"{name}-{number:03d}" for number in random.permutation(people)]
    with (folder / f"{name}.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["height", "person", "colour", "group"])
        for number, person in enumerate(ids):
            colour = changes.get("colour") or ["red", "blue", ""][number % 3]
            rows.writerow([number / 10 + seed, person, colour, ["cats", "dogs"][number % 2]])
    with (folder / f"{name}-friends.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["since", "who", "whom"])
        rows.writerows([2000 + one, ids[one], ids[(one * 7 + 1) % people]] for one in range(people))
    return ids


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of a model that was trained on a pair of tables."""
    folder = tmp_path_factory.mktemp("tables")
    write_people(folder, "today")
    columns = ("--id", "person", "--label", "group", "--source", "who", "--target", "whom")
    preset = adar_train.config.preset
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        few = {"exit_budgets": (2, 4), "select_budgets": (2,)}
        patch.setattr(adar_train.config, "preset", lambda *a, **k: replace(preset(*a, **k), **few))
        patch.setattr(adar_export, "export_bundle", partial(adar_export.export_bundle, steps=(1, 2)))
        for command in (
            ("train", "today.csv", "--edges", "today-friends.csv", *columns, *TRAIN, "--out", "run"),
            ("export", "run", "--out", "bundle"),
        ):
            patch.setattr("sys.argv", ["adar-deploy", *map(str, command)])
            with pytest.raises(SystemExit) as stop:
                main()
            assert stop.value.code == 0
    return folder / "bundle"


def test_string_ids_go_from_a_table_to_the_predictions(adar, bundle: Path, tmp_path: Path) -> None:
    ids = write_people(tmp_path, "tomorrow", seed=1)
    tables = ("tomorrow.csv", "--edges", "tomorrow-friends.csv", "--bundle", bundle, "--max-steps", 5)
    code, out, err = adar("run", *tables, "--output", "p.csv", "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["metrics"]["all"] >= 0
    with (tmp_path / "p.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert list(rows[0]) == ["id", "class", "probability_cats", "probability_dogs"]
    assert [row["id"] for row in rows] == ids
    assert {row["class"] for row in rows} <= {"cats", "dogs"}
    for row in rows:
        likely = max(("cats", "dogs"), key=lambda name: float(row[f"probability_{name}"]))
        assert row["class"] == likely
    code, out, _ = adar("evaluate", bundle, *tables[:3], "--budgets", 4, "--json")
    assert code == 0
    assert json.loads(out)["counted"] == "all 60 labels"


def test_the_run_can_be_evaluated_on_tables_as_well(adar, bundle: Path, tmp_path: Path) -> None:
    write_people(tmp_path, "tomorrow", seed=1)
    found = [
        json.loads(
            adar(
                "evaluate", model, "tomorrow.csv", "--edges", "tomorrow-friends.csv", "--budgets", 4, "--json"
            )[1]
        )
        for model in (bundle, bundle.parent / "run")
    ]
    assert found[0]["budgets"][0]["at_end"] == pytest.approx(found[1]["budgets"][0]["at_end"])


def test_the_encoding_is_in_the_bundle_and_in_the_run(bundle: Path) -> None:
    encoding = read_manifest(bundle).feature_encoding
    assert encoding == read_graph(bundle.parent / "run" / GRAPH).feature_encoding
    assert encoding.feature_names == ["height", "colour=blue", "colour=red", "colour is missing"]
    assert (encoding.id, encoding.label, encoding.labels) == ("person", "group", "classes")
    assert (encoding.source, encoding.target, encoding.both_ways) == ("who", "whom", True)
    assert read_manifest(bundle).training["data"] == ["today.csv"]


def test_an_unseen_category_is_reported_and_a_missing_column_is_an_error(
    adar, bundle: Path, tmp_path: Path
) -> None:
    write_people(tmp_path, "tomorrow", colour="green")
    command = ("run", "tomorrow.csv", "--edges", "tomorrow-friends.csv", "--bundle", bundle, "--max-steps", 2)
    code, _, err = adar(*command)
    assert code == 0
    assert "60 values of 'colour' are categories that the model has not seen: green; they become zeros" in err
    path = tmp_path / "tomorrow.csv"
    path.write_text(path.read_text().replace("colour", "color", 1))
    code, _, err = adar(*command)
    assert (code, len(err.splitlines())) == (2, 1)
    assert "tomorrow.csv: the model needs the column colour; the columns are height, color, group" in err


def test_a_converted_table_has_the_same_features(adar, bundle: Path, tmp_path: Path) -> None:
    ids = write_people(tmp_path, "tomorrow", seed=2)
    tables = ("tomorrow.csv", "tomorrow.npz", "--edges", "tomorrow-friends.csv")
    assert adar("data", "convert", *tables, "--bundle", bundle)[0] == 0
    graph = read_graph(tmp_path / "tomorrow.npz")
    assert graph.ids.tolist() == ids
    assert graph.feature_encoding == read_manifest(bundle).feature_encoding
    for source, name in (("tomorrow.npz", "a.csv"), ("tomorrow.csv", "b.csv")):
        edges = ("--edges", tables[3]) if source.endswith("csv") else ()
        assert adar("run", source, *edges, "--bundle", bundle, "--max-steps", 3, "-o", name)[0] == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()


def test_a_table_that_was_encoded_on_its_own_is_refused(adar, bundle: Path, tmp_path: Path) -> None:
    """Four features as well, with another meaning: the answer would be wrong without an error."""
    write_people(tmp_path, "other")
    path = tmp_path / "other.csv"
    path.write_text(path.read_text().replace("blue", "green"))
    columns = ("--id", "person", "--label", "group", "--source", "who", "--target", "whom")
    assert adar("data", "convert", "other.csv", "o.npz", "--edges", "other-friends.csv", *columns)[0] == 0
    assert read_graph(tmp_path / "o.npz").width == read_manifest(bundle).features
    code, _, err = adar("run", "o.npz", "--bundle", bundle)
    assert code == 2
    assert "encoded in another way" in err


def test_some_nodes_only(adar, bundle: Path, tmp_path: Path) -> None:
    ids = write_people(tmp_path, "tomorrow")
    tables = ("tomorrow.csv", "--edges", "tomorrow-friends.csv", "--bundle", bundle, "--max-steps", 3)
    (tmp_path / "ids.txt").write_text(f"{ids[7]}\n\n  {ids[2]}\r\n")
    assert adar("run", *tables, "-o", "all.csv")[0] == 0
    assert adar("run", *tables, "-o", "some.csv", "--nodes", "ids.txt")[0] == 0
    everything = (tmp_path / "all.csv").read_text().splitlines()
    assert (tmp_path / "some.csv").read_text().splitlines() == [everything[0], everything[8], everything[3]]
    (tmp_path / "ids.txt").write_text(f"{ids[7]}\nnobody\n")
    code, _, err = adar("run", *tables, "-o", "some.csv", "--nodes", "ids.txt")
    assert code == 2
    assert "ids.txt: line 2: 'nobody' is not a node id of the graph" in err
    (tmp_path / "ids.txt").write_text(f"{ids[7]}\n{ids[7]}\n")
    code, _, err = adar("run", *tables, "-o", "some.csv", "--nodes", "ids.txt")
    assert f"ids.txt: line 2: node '{ids[7]}' is already in line 1" in err
    code, _, err = adar("run", *tables, "--nodes", "ids.txt")
    assert "add --output" in err


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (("run", "g.npz", "--id", "x"), "--id is for a table of nodes: add --edges"),
        (
            ("run", "a.csv", "b.csv", "--edges", "e.csv", "-o", "{name}.csv"),
            "--edges needs exactly one table",
        ),
        (("run", "people.csv"), "a table of nodes needs --edges"),
        (("train", "people.csv"), "a table of nodes needs --edges"),
        ((*PEOPLE, "--id", "x"), "id column 'x' not found; the columns are height, person, colour, group"),
        ((*PEOPLE, "--id", "person"), "line 1: node 'since' is not in people.csv"),
        ((*PEOPLE, *IDS, "--target", "x"), "column 'x' of edges not found; the columns are since, who, whom"),
        ((*PEOPLE, *IDS, "--target", "whom", "--features", "x"), "feature column 'x' not found; the columns"),
        ((*PEOPLE, *IDS, "--target", "whom", "--label", "x"), "label column 'x' not found; the columns"),
    ],
)
def test_a_mistake_is_one_line(adar, bundle: Path, tmp_path: Path, command, message: str) -> None:
    write_people(tmp_path, "people")
    given = (*command, "--bundle", bundle) if command[0] == "run" else command
    code, _, err = adar(*given)
    assert (code, len(err.splitlines())) == (2, 1)
    assert message in err


def test_a_bundle_without_encoding_refuses_tables(adar, bundle_folder: Path, tmp_path: Path) -> None:
    write_people(tmp_path, "people")
    code, _, err = adar("run", "people.csv", "--edges", "people-friends.csv", "--bundle", bundle_folder)
    assert code == 2
    assert "has no feature_encoding, because it was trained on a graph file" in err
    code, _, err = adar("run", "people.csv", "--edges", "people-friends.csv", "--bundle", "pretrained")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "adar-deploy data convert people.csv graph.npz --edges people-friends.csv" in err


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"columns": []}, "has a feature_encoding of 2 features, but the model takes 4"),
        ({"columns": 5}, "has a feature_encoding that cannot be read: 'columns' is missing or not a list"),
        (
            {"both_ways": None},
            "has a feature_encoding that cannot be read: 'both_ways' is missing or not a bool",
        ),
    ],
)
def test_the_encoding_of_a_manifest_is_checked(
    bundle: Path, tmp_path: Path, change: dict, message: str
) -> None:
    fields = json.loads((bundle / FILE_NAME).read_text())
    fields["feature_encoding"] |= change
    (tmp_path / FILE_NAME).write_text(json.dumps(fields | {"checksum": checksum_of(fields)}))
    with pytest.raises(BundleError, match=message):
        read_manifest(tmp_path)
    older = {key: value for key, value in fields.items() if key != "feature_encoding"}
    (tmp_path / FILE_NAME).write_text(json.dumps(older | {"checksum": checksum_of(older)}))
    assert read_manifest(tmp_path).feature_encoding is None


def test_drift_names_the_columns_of_the_table(adar, bundle: Path) -> None:
    code, out, _ = adar("drift", bundle, bundle.parent / "run" / "graph.pt", "--json")
    assert code == 0
    assert {"feature height", "feature colour=red"} <= {
        change["name"] for change in json.loads(out)["changes"]
    }


@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("command", "options"),
    [
        ("report", ("--budgets", 3)),
        ("validate", ("--steps", 2)),
        ("drift", ("--max-steps", 2)),
        ("evaluate", ("--budgets", 3)),
    ],
)
def test_every_command_for_a_graph_takes_tables(
    adar, bundle: Path, tmp_path: Path, command: str, options: tuple, turned: bool
) -> None:
    """With the encoding of the bundle, and in either order."""
    write_people(tmp_path, "tomorrow", colour="green")
    words = ("tomorrow.csv", bundle) if turned else (bundle, "tomorrow.csv")
    code, out, err = adar(command, *words, "--edges", "tomorrow-friends.csv", *options, "--json")
    assert code in ((0, 3) if command == "drift" else (0,))
    assert "60 values of 'colour' are categories that the model has not seen: green" in err
    assert "tomorrow.csv" in out


def test_a_run_without_a_bundle_is_reported_on_tables(adar, bundle: Path, tmp_path: Path) -> None:
    write_people(tmp_path, "tomorrow", seed=1)
    tables = ("tomorrow.csv", "--edges", "tomorrow-friends.csv")
    code, out, _ = adar("report", bundle.parent / "run", *tables, "--budgets", 3, "--json")
    assert (code, json.loads(out)["evaluation"]["counted"]) == (0, "all 60 labels")


def test_the_card_is_about_tables(bundle: Path) -> None:
    card = (bundle / "README.md").read_text()
    assert "| height | number |  |" in card
    assert "| colour | 2 categories | may be empty |" in card
    assert "adar-deploy run nodes.csv --edges edges.csv --bundle ." in card
    assert 'bundle.run(bundle.read_tables("nodes.csv", "edges.csv"), budget=300)' in card
    assert 'Classes: "cats", "dogs".' in card


def test_python_reads_tables_as_the_model_was_trained(bundle: Path, tmp_path: Path) -> None:
    ids = write_people(tmp_path, "tomorrow", seed=1)
    tables = (tmp_path / "tomorrow.csv", tmp_path / "tomorrow-friends.csv")
    for model in (load(bundle), TrainedModel(bundle.parent / "run")):
        graph = model.read_tables(*tables)
        assert graph.ids.tolist() == ids
        assert graph.feature_encoding == read_manifest(bundle).feature_encoding
    assert load(bundle).predict(graph, budget=2).to_pandas()["id"].tolist() == ids


def test_python_reads_no_tables_for_a_model_of_graph_files(bundle_folder: Path) -> None:
    with pytest.raises(UsageError, match="has no feature_encoding, because it was trained on a graph"):
        load(bundle_folder).read_tables("nodes.csv", "edges.csv")


def test_bench_takes_tables(adar, bundle: Path, tmp_path: Path) -> None:
    write_people(tmp_path, "tomorrow", seed=1)
    tables = ("tomorrow.csv", "--edges", "tomorrow-friends.csv")
    code, out, _ = adar(
        "bench", bundle, *tables, "--max-steps", 2, "--repeats", 1, "--solver", "euler", "--json"
    )
    measured = json.loads(out)["measured"]
    assert (code, {row["graph"] for row in measured}) == (0, {"tomorrow.csv"})
    assert all(row["nodes"] == 60 and "problem" not in row for row in measured)


@pytest.mark.parametrize("command", ["report", "validate", "bench"])
def test_edges_without_a_table_of_nodes(adar, bundle: Path, command: str) -> None:
    code, _, err = adar(command, bundle, "--edges", "e.csv")
    assert (code, len(err.splitlines())) == (2, 1)
    assert "--edges needs exactly one table of nodes; got 0" in err


@pytest.mark.parametrize(
    "words",
    [
        ("run", "a.csv", "--edges", "a-friends.csv", "--output", "a-friends.csv"),
        ("run", "a.csv", "--edges", "a-friends.csv", "--nodes", "ids.csv", "--output", "ids.csv"),
        ("run", "a.csv", "--edges", "a-friends.csv", "--context", "context", "--output", "a-friends.csv"),
        ("evaluate", "bundle", "a.csv", "--edges", "a-friends.csv", "--output", "a.csv"),
        ("evaluate", "bundle", "a.csv", "--edges", "a-friends.csv", "--output", "a-friends.csv"),
        ("evaluate", "bundle", "a.csv", "--edges", "a-friends.csv", "--output", "bundle/manifest.json"),
        ("evaluate", "bundle", "a.csv", "--edges", "a-friends.csv", "--plot", "run/learning.png"),
        ("bench", "bundle", "a.csv", "--edges", "a-friends.csv", "--plot", "run/learning.png"),
    ],
)
def test_no_output_replaces_an_input_or_a_file_of_a_model(adar, bundle: Path, tmp_path: Path, words) -> None:
    ids = write_people(tmp_path, "a")
    (tmp_path / "ids.csv").write_text("\n".join(ids[:3]))
    (tmp_path / "bundle").symlink_to(bundle)
    (tmp_path / "run").mkdir()
    for name in ("learning.png", "model.safetensors"):
        (tmp_path / "run" / name).touch()
    named = tmp_path / words[-1]
    before = named.read_bytes()
    code, _, err = adar(*words, *(["--bundle", "bundle"] if words[0] == "run" else []))
    assert (code, err.count("\n")) == (2, 1)
    assert "choose another path" in err
    assert named.read_bytes() == before
