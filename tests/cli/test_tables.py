"""Tables in windows of every width: nothing is left out, nothing sticks out, and columns stay columns."""

import pytest

from adar_deploy import console
from adar_deploy.console import print_rows

COLUMNS = ["graph: 9 nodes", "calls", "step ms p50", "p90", "run s p50", "PyTorch / it", "MB"]
ROWS = [
    ("onnxruntime-cpu euler, 1 thread", 300, "1.25", "2.50", "0.125", "1.5 [1.4, 1.6]", 85),
    ("pytorch euler, 1 thread", 301, "11.75", "12.00", "4.125", "1.0 [1.0, 1.0]", 1386),
]


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch, capsys):
    """The lines of the table in a window of some width."""

    def draw(width: int) -> list[str]:
        monkeypatch.setattr(console.out, "_width", width)
        print_rows(COLUMNS, ROWS)
        return capsys.readouterr().out.splitlines()

    return draw


@pytest.mark.parametrize("width", range(32, 130, 7))
def test_all_of_a_table_is_in_a_window_of_any_width(drawn, width: int) -> None:
    lines = drawn(width)
    assert max(map(len, lines)) <= width
    words = sorted(" ".join(lines).split())
    assert words == sorted(" ".join(str(cell) for row in (COLUMNS, *ROWS) for cell in row).split())
    said = " ".join(" ".join(lines).split())
    assert all(
        str(cell) in said for row in ROWS for cell in row
    )  # no number is broken, however narrow it gets


def test_a_wide_window_has_a_line_a_row(drawn) -> None:
    assert len(drawn(130)) == 3
    assert len(drawn(70)) == 2 + 2 * 2  # the names in lines of their own
    assert len(drawn(55)) == 4 + 2 * 2  # the words of the heading below each other
    assert len(drawn(40)) == 3 + 2 * 3  # all that is beside the name, in two lines


def test_what_is_folded_stands_under_its_heading(drawn) -> None:
    lines = drawn(40)
    for heading, value in (
        ("step ms p50", "1.25"),
        ("run s p50", "0.125"),
        ("PyTorch / it", "1.5 [1.4, 1.6]"),
    ):
        ends = {line.index(text) + len(text) for text in (heading, value) for line in lines if text in line}
        assert len(ends) == 1, heading


def test_a_text_is_broken_before_every_row_is(monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    monkeypatch.setattr(console.out, "_width", 24)
    print_rows(["graph", "stop", "metric"], [("a", 1, "84.95 %, not 84.97 %"), ("b", 10, "95.20 %")])
    a, *_, b = (line for line in capsys.readouterr().out.splitlines() if "%" in line)
    assert a.split() == ["1", "84.95", "%,", "not"]
    assert b.split() == ["10", "95.20", "%"]
