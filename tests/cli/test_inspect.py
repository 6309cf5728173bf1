"""`adar-deploy inspect` shows all of a bundle, in any window, and trusts none of it."""

import json
import shutil
from pathlib import Path

import onnx
import pytest

from adar_deploy import console
from tests.bundles import change_model, edit, replace_model
from tests.cli.test_imports import HEAVY, loaded_after


@pytest.fixture
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console.out, "_width", 160)


@pytest.mark.usefixtures("wide")
def test_it_shows_what_there_is_to_know(adar, bundle_folder: Path) -> None:
    code, out, err = adar("inspect", bundle_folder)
    assert (code, err) == (0, "")
    lines = [" ".join(line.split()) for line in out.splitlines()]
    for line in (
        "features 10 columns",
        "hidden, proxies 16, 4",
        "opset, precision 17, fp32",
        "classes safe, mine",
        "encoder.onnx",
        "features float32 n × 10",
        "leaf_0 … leaf_5 int32 leaf_rows × leaf_width",
        "previous_nodes_velocity float32 n × 16",
        "lead float32",
        "checksums all files",
        "engines none",
        "cell calls needed to match 300 Euler steps",
    ):
        assert line in lines
    assert "Gemm" in out
    assert "ROC-AUC" in out
    assert "order of convergence" in out
    assert sum(line.startswith("the run's graph") for line in lines) == 1  # each graph is named once
    assert "smoothing" not in out


@pytest.mark.usefixtures("wide")
def test_it_shows_the_smoothing(adar, bundle_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(bundle_folder, tmp_path / "smooth")
    edit(folder, lambda m: m.update(schema=3, smoothing=2))
    code, out, _ = adar("inspect", folder)
    assert code == 0
    assert "smoothing rounds: 2" in [" ".join(line.split()) for line in out.splitlines()]


def test_a_few_of_many_names_of_classes_are_shown_and_none_moves_the_cursor(
    adar, bundle_folder: Path, tmp_path: Path
) -> None:
    copy, names = shutil.copytree(bundle_folder, tmp_path / "many"), ["\x1b[2J", *map(str, range(29))]
    edit(copy, lambda m: m.update(class_names=names))
    out = " ".join(adar("inspect", copy)[1].split())
    assert "classes \\x1b[2J, 0, 1," in out
    assert "18 and 10 more" in out
    assert json.loads(adar("inspect", copy, "--json")[1])["manifest"]["class_names"] == names


@pytest.mark.parametrize("width", [60, 80, 160])
def test_it_fits_the_window_and_breaks_no_name(
    adar, bundle_folder: Path, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setattr(console.out, "_width", width)
    _, out, _ = adar("inspect", bundle_folder)
    assert max(map(len, out.splitlines())) <= width
    assert "previous_target_proxies_velocity  float32 4 × 16" in out


def test_as_json(adar, bundle_folder: Path) -> None:
    code, out, _ = adar("inspect", bundle_folder, "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["manifest"] == json.loads((bundle_folder / "manifest.json").read_text())
    cell = onnx.load(bundle_folder / "cell.onnx").graph
    assert shown["graphs"]["cell"]["operators"] == [node.op_type for node in cell.node]
    sizes = [onnx.numpy_helper.to_array(weight).size for weight in cell.initializer]
    assert shown["graphs"]["cell"]["parameters"] == sum(sizes)
    assert shown["engines"] == []


@pytest.mark.usefixtures("wide")
def test_an_older_bundle_is_shown_as_it_is(adar, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(bundle, lambda m: m.pop("checksum"), seal=False)
    assert "ONNX files only, not the manifest" in adar("inspect", bundle)[1]
    assert "checksum" not in json.loads(adar("inspect", bundle, "--json")[1])["manifest"]


def test_it_needs_neither_torch_nor_onnx(bundle_folder: Path) -> None:
    arguments = ["adar-deploy", "inspect", str(bundle_folder)]
    code = f"from adar_deploy.cli import main\nsys.argv = {arguments!r}\ntry: main()\nexcept SystemExit: pass"
    assert not loaded_after(code) & ({*HEAVY, "onnxruntime"} - {"typer"})


def no_unicode(model: onnx.ModelProto) -> None:
    model.graph.node[0].op_type = "Zzzz"


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m["parity"].update(checks=[1]),
        lambda m: m["parity"].update(checks=7),
        lambda m: m["parity"]["checks"][0].pop("stop"),
        lambda m: m["parity"]["checks"][0].update(absolute="x"),
        lambda m: m.update(convergence={"order": 1.0}),
        lambda m: m["convergence"].update(calls=3),
        lambda m: m["training"].update(data=5),
        lambda m: m["training"].update(test="good"),
    ],
)
def test_a_hostile_report_is_one_line(adar, bundle_folder: Path, tmp_path: Path, change) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(bundle, change)
    code, _, err = adar("inspect", bundle)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert "export the run again" in err


def test_an_operator_that_is_no_text_is_one_line(adar, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = change_model(bundle_folder, tmp_path / "bundle", "head", no_unicode)
    content = (bundle / "head.onnx").read_bytes().replace(b"Zzzz", b"\xff\xfe\xff\xfe")
    replace_model(bundle, "head", content)
    code, _, err = adar("inspect", bundle)
    assert code == 2
    assert len(err.strip().splitlines()) == 1


@pytest.mark.usefixtures("wide")
def test_names_cannot_paint_or_move_the_cursor(adar, bundle_folder: Path, tmp_path: Path) -> None:
    bundle = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(bundle, lambda m: m["graphs"]["head"]["inputs"][0].update(name="[red]\x1b[2J"))
    edit(bundle, lambda m: m["convergence"].update(graph="[bold]\x07", calls={"\x1b[1m[i]": 3}))
    code, out, _ = adar("inspect", bundle)
    assert code == 0
    assert r"[red]\x1b[2J" in out
    assert r"\x1b[1m[i]" in out
    assert "\x1b" not in out
    assert "\x07" not in out


def test_a_folder_that_is_missing_and_one_that_is_no_bundle_have_different_messages(
    adar, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    assert "nowhere: not a bundle (folder not found)" in adar("inspect", "nowhere")[2]
    assert "empty: not a bundle (manifest.json not found)" in adar("inspect", "empty")[2]
