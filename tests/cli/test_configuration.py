"""Options from the environment, adar.toml and pyproject.toml, and which of them wins."""

import json
from pathlib import Path

import pytest

MAKE = ("data", "make", "chain", "--json")


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


def test_flags_arguments_lists_and_underscores(adar, bundle_folder: Path, board, tmp_path: Path) -> None:
    from adar_runtime import write_graph

    write_graph(tmp_path / "g.npz", board)
    (tmp_path / "adar.toml").write_text(
        f"json = true\nbundle = '{bundle_folder}'\nthreads = 1\n"
        "[run]\ngraphs = ['g.npz']\nmax_steps = 3\nexit = 'final'\n"
        f"[evaluate]\nmodel = '{bundle_folder}'\ngraphs = 'g.npz'\nbudgets = [2, 3]\n"
    )
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
