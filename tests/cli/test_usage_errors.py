"""A command that was typed wrongly: one line that says what is wrong with it, and where to look."""

import shutil
from pathlib import Path

import pytest

from adar_deploy.options import ExitRule
from adar_runtime import Graph, write_graph


@pytest.mark.parametrize(
    ("typed", "command", "said"),
    [
        ("run g --max-step 3", "run", "no such option --max-step (did you mean --max-steps?)"),
        ("run g --json --qqqq", "run", "no such option --qqqq"),
        ("run", "run", "missing argument 'graphs'"),
        ("run g --max-steps x", "run", "--max-steps should be a valid integer"),
        ("run g --threads 0", "run", "--threads should be greater than or equal to 1"),
        ("run g --exit never", "run", f"--exit: 'never' is not one of {str([*map(str, ExitRule)])[1:-1]}"),
        ("run g --max-steps", "run", "option --max-steps requires an argument"),
        ("run g --json=3", "run", "option --json does not take a value"),
        ("data make", "data make", "missing argument 'family': choose from minesweeper, chain, tree, blocks"),
        ("data make chain x y", "data make", "unexpected extra arguments: x y"),
        ("data mak", "data", "no such command 'mak' (did you mean 'make'?)"),
        ("rum", "", "no such command 'rum' (did you mean 'run'?)"),
        ("--verzion", "", "no such option --verzion (did you mean --version?)"),
        ("--config", "", "option --config requires an argument"),
    ],
)
def test_a_mistyped_command_is_one_line(adar, typed: str, command: str, said: str) -> None:
    called = f"adar-deploy {command}".strip()
    assert adar(*typed.split()) == (2, "", f"error: {called}: {said}; see {called} --help\n")


def test_an_option_that_counts_once_is_not_ignored_without_a_word(adar) -> None:
    """Of two tables of edges, one was read."""
    Path("n.csv").write_text("id,a,b\n0,1,2\n1,3,4\n2,5,6\n")
    Path("one.csv").write_text("source,target\n0,1\n")
    Path("two.csv").write_text("source,target\n1,2\n")
    words = ["data", "show", "n.csv", "--edges", "one.csv", "--features", "a", "--json"]
    code, _, err = adar(*words, "--edges", "two.csv", "--one-way", "--both-ways", "--features=b", "--json")
    assert (code, [line for line in err.splitlines() if "more than once" in line]) == (
        0,
        [f"note: --{name} is given more than once: the last one counts" for name in ("edges", "features")],
    )
    assert "more than once" not in adar(*words)[2]


def test_the_variable_that_a_bad_value_is_from_is_named(adar, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADAR_HOPS", "far")
    assert (
        "make: --hops (env var: 'ADAR_HOPS') should be a valid integer;" in adar("data", "make", "chain")[2]
    )


@pytest.mark.parametrize("words", [[], ["data"]])
def test_no_command_at_all_is_the_help_and_nothing_more(adar, words: list[str]) -> None:
    code, out, err = adar(*words)
    assert (code, err) == (2, "")
    assert "Usage: adar-deploy" in out


def test_no_escape_sequence_of_a_mistyped_word_reaches_the_terminal(adar) -> None:
    assert adar("run", "--\x1b[2J")[2].strip().isprintable()


@pytest.mark.parametrize("command", ["data show", "run", "inspect"])
def test_a_name_that_is_too_long_is_one_line(adar, command: str) -> None:
    code, _, err = adar(*command.split(), f"{'x' * 5000}.npz")
    assert code == 2
    assert len(err.splitlines()) == 1
    assert "File name too long" in err


def test_no_control_character_of_a_file_reaches_the_terminal(adar, tmp_path: Path) -> None:
    """U+009B begins a terminal sequence, and XML allows it in the name of an attribute."""
    (tmp_path / "g.graphml").write_text(
        '<graphml><key id="k" for="edge" attr.name="w&#x9b;2J" attr.type="int"/>'
        '<graph edgedefault="directed"><node id="a"/><node id="b"/>'
        '<edge source="a" target="b"><data key="k">1</data></edge></graph></graphml>'
    )
    code, out, err = adar("data", "convert", tmp_path / "g.graphml", tmp_path / "g.npz")
    assert code == 0, err
    assert r"w\x9b2J" in out
    assert all(line.isprintable() for line in (out + err).splitlines())


def test_an_output_does_not_replace_a_file_of_a_bundle(
    adar, bundle_folder: Path, board: Graph, tmp_path: Path
) -> None:
    write_graph(tmp_path / "board.npz", board)
    copy = shutil.copytree(bundle_folder, tmp_path / "bundle")
    before = (copy / "manifest.json").read_bytes()
    words = ("run", tmp_path / "board.npz", "--bundle", copy, "--max-steps", 2, "--output")
    code, _, err = adar(*words, copy / "manifest.json")
    assert (code, err.count("\n")) == (2, 1)
    assert "is a file of a bundle or training run: choose another path" in err
    assert (copy / "manifest.json").read_bytes() == before
    for _ in range(2):  # other files in the folder are the user's, and may be replaced
        assert adar(*words, copy / "predictions.json")[0] == 0
