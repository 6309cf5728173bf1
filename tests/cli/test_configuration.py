"""Options from the environment, adar.toml and pyproject.toml, and which of them wins."""

import json
from inspect import signature
from pathlib import Path

import pytest
import typer.main

from adar_deploy.cli import app
from adar_deploy.configuration import NOT_FROM_WORKING_FOLDER, ONLY_READ, parameters_of

MAKE = ("data", "make", "chain", "--output", "chain.npz", "--json")


@pytest.fixture
def hops(adar):
    """How many hops `data make chain` is told to have, by whatever is set."""

    def ask(*options: object) -> int:
        code, out, err = adar(*options, *MAKE)
        assert (code, err) == (0, "")
        return json.loads(out)["settings"]["hops"]

    return ask


def test_the_nearest_word_wins(hops, adar, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert hops() == 16
    (tmp_path / "pyproject.toml").write_text("[tool.other]\nx = 1\n[tool.adar.data.make]\nhops = 2\n")
    assert hops() == 2
    (tmp_path / "adar.toml").write_text("hops = 3")
    assert hops() == 3  # for every command that has it, and before pyproject.toml all the same
    (tmp_path / "adar.toml").write_text("hops = 3\n[data.make]\nhops = 4")
    assert hops() == 4
    monkeypatch.setenv("ADAR_HOPS", "5")
    assert hops() == 5
    monkeypatch.setenv("ADAR_DATA_MAKE_HOPS", "6")
    assert hops() == 6
    assert json.loads(adar(*MAKE, "--hops", 7)[1])["settings"]["hops"] == 7


def test_a_file_can_be_named(hops, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adar.toml").write_text("hops = 3")
    (tmp_path / "other.toml").write_text("[data.make]\nhops = 9")
    assert hops("--config", "other.toml") == 9
    monkeypatch.setenv("ADAR_CONFIG", "other.toml")
    assert hops() == 9


def test_flags_arguments_lists_and_underscores(
    adar, bundle_folder: Path, board, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from adar_runtime import write_graph

    write_graph(tmp_path / "g.npz", board)
    (tmp_path / "adar.toml").write_text(
        f"json = true\nbundle = '{bundle_folder}'\nthreads = 1\n"
        "[run]\ngraphs = ['g.npz']\nmax_steps = 3\nexit = 'final'\n"
        f"[evaluate]\nmodel = '{bundle_folder}'\ngraphs = 'g.npz'\nbudgets = [2, 3]\n"
    )
    monkeypatch.setenv("ADAR_CONFIG", "adar.toml")
    assert json.loads(adar("run")[1])["steps"] == 3
    assert [row["budget"] for row in json.loads(adar("evaluate")[1])["budgets"]] == [2, 3]
    assert json.loads(adar("inspect")[1])["manifest"]["hidden"] == 16


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("hop = 3", "unknown option hop: did you mean hops?"),
        ("[run]\nmax-stepz = 3", "unknown option run.max-stepz: did you mean run.max-steps?"),
        ("[data]\nseed = 3", "unknown option data.seed: did you mean data.make.seed?"),
        ("[walk]\nzzz = 3", "unknown option walk.zzz"),
        ("[run]\nmax-steps = 3\nmax_steps = 5", "run.max-steps is set twice, with - and with _"),
        ("hops 3", "is not TOML"),
        ("hops = 'far'", "adar.toml: hops: "),
        ("hops = 1.5", "adar.toml: hops: "),
        ("hops = true", "hops is true, but this option takes a value"),
        ("[data.make]\nfamily = 3", "adar.toml: family: "),
    ],
)
def test_what_cannot_be_is_one_line_that_names_the_file(
    adar, tmp_path: Path, content: str, message: str
) -> None:
    (tmp_path / "adar.toml").write_text(content)
    code, out, err = adar("data", "make", *([] if "family" in content else ["chain"]))
    assert (code, out) == (2, "")
    assert err.startswith("error: adar.toml: ")
    assert message in err
    assert len(err.strip().splitlines()) == 1


def test_a_file_that_is_not_there_or_no_text(adar, tmp_path: Path) -> None:
    assert "nowhere.toml: cannot be read" in adar("--config", "nowhere.toml", *MAKE)[2]
    (tmp_path / "adar.toml").write_bytes(b"\xff\xfe")
    assert "adar.toml: is not TOML" in adar(*MAKE)[2]


def test_a_variable_that_cannot_be_is_named(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAR_HOPS", "far")
    code, _, err = adar(*MAKE)
    assert code == 2
    assert "ADAR_HOPS" in err
    assert "ADAR_HOPS" in adar("data", "make", "-h")[1]
    monkeypatch.setenv("ADAR_HOPS", "")
    assert adar(*MAKE)[0] == 0


REFUSED = {name for names in NOT_FROM_WORKING_FOLDER.values() for name in names}


def callbacks(group, words: tuple[str, ...] = ()):
    """The function of every command."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from callbacks(command, (*words, name))
        else:
            yield (*words, name), command.callback


def path_options() -> list[tuple[tuple[str, ...], str]]:
    """Command and name of every option and argument that takes a path."""
    group, found = typer.main.get_command(app), []
    functions = dict(callbacks(group))
    for one in parameters_of(group):
        function = functions[one.command]
        parameter = signature(function).parameters[one.parsed_by.name]  # also those that are generated
        if "Path" in str(parameter.annotation):
            found.append((one.command, one.name))
    return found


@pytest.mark.parametrize("value", ['"pyg:WikiCS"', '["minesweeper", "pyg:WikiCS"]'])
def test_a_file_in_the_working_folder_downloads_nothing(adar, value: str) -> None:
    """PyG unpickles some of the data sets that it downloads."""
    Path("adar.toml").write_text(f"[train]\ndata = {value}\nepochs = 1\n")
    code, out, err = adar("train")
    assert (code, out) == (2, "")
    assert "train.data decides what is downloaded" in " ".join(err.split())


def test_the_document_lists_what_a_file_in_the_working_folder_may_not_set() -> None:
    text = (Path(__file__).parents[2] / "docs/settings.md").read_text()
    for decides, names in NOT_FROM_WORKING_FOLDER.items():
        assert f"| {decides} | {', '.join(f'`{name}`' for name in names)} |" in text


def test_every_option_that_takes_a_path_is_in_one_of_the_two_lists() -> None:
    found = {name for _, name in path_options()}
    assert len(found) > 8
    assert found - REFUSED - set(ONLY_READ) == set()
    assert not REFUSED & set(ONLY_READ)


def refused_options() -> list[tuple[str, str]]:
    known = parameters_of(typer.main.get_command(app))
    return sorted({(".".join(one.command), one.name) for one in known if one.name in REFUSED})


@pytest.mark.parametrize("file", ["adar.toml", "pyproject.toml"])
def test_a_file_in_the_working_folder_chooses_no_output_and_no_model(adar, tmp_path: Path, file: str) -> None:
    assert ("run", "output") in refused_options()
    for command, name in refused_options():
        table = f"tool.adar.{command}" if file == "pyproject.toml" else command
        content = f"[{table}]\n{name} = 'elsewhere'\n"
        (tmp_path / file).write_text(content)
        code, out, err = adar(*MAKE)
        assert (code, out) == (2, ""), (command, name)
        assert err.startswith(f"error: {file}: {command}.{name} decides "), (command, name)
        assert f"--config {file}" in err
        (tmp_path / file).unlink()


def test_a_file_in_the_working_folder_does_not_start_ray(adar, bundle_folder: Path, board) -> None:
    """Its ports listen on all interfaces, without access control."""
    from adar_runtime import write_graph

    write_graph(Path("g.npz"), board)
    words = ("run", "g.npz", "--bundle", bundle_folder, "--max-steps", 2, "--output", "answers")
    for option in ("shards = 2", 'workers = "2"'):
        Path("adar.toml").write_text(f"[run]\n{option}\n")
        code, out, err = adar(*words)
        assert (code, out) == (2, ""), option
        assert "decides whether Ray starts" in " ".join(err.split())
        assert not Path("answers").exists()


def test_a_file_in_the_working_folder_does_not_make_a_run_write(
    adar, bundle_folder: Path, board, tmp_path: Path
) -> None:
    from adar_runtime import write_graph

    write_graph(tmp_path / "g.npz", board)
    target = tmp_path / "precious.csv"
    target.write_text("mine")
    (tmp_path / "adar.toml").write_text(f"output = '{target}'")
    words = ("run", "g.npz", "--bundle", bundle_folder, "--max-steps", 2)
    assert adar(*words)[0] == 2
    assert target.read_text() == "mine"
    assert adar("--config", "adar.toml", *words)[0] == 0
    assert target.read_text() != "mine"


@pytest.mark.parametrize("line", [f"{'k' * 10**5} = 1", f"hops = '{'x' * 10**5}'"])
def test_a_long_key_or_value_is_not_repeated(adar, tmp_path: Path, line: str) -> None:
    (tmp_path / "adar.toml").write_text(line)
    code, _, err = adar(*MAKE)
    assert code == 2
    assert err.startswith("error: adar.toml: ")
    assert len(err) < 1000
