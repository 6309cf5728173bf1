"""Pictures of measurements."""

import re
from pathlib import Path

import pytest

from adar_runtime.benchmarking.sides import Case, Side, Timing
from adar_runtime.evaluation import plots
from adar_runtime.evaluation.plots import plot_speed


def timings(*sizes: int) -> list[Timing]:
    sides = [
        Side(lambda: None, Path("b"), "onnxruntime-cpu", solver, 1, "fp32") for solver in ("euler", "ab2")
    ]
    return [
        Timing(side, Case("g", Path("g.npz"), nodes, 4 * nodes), runs=[0.2, 0.3], steps=[0.01, 0.02])
        for side in sides
        for nodes in sizes
    ]


@pytest.mark.parametrize(("sizes", "axis"), [((500,), False), ((500, 2000), True)])
def test_speed_has_an_axis_of_sizes_only_for_several_sizes(
    sizes: tuple[int, ...], axis: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    monkeypatch.setitem(matplotlib.rcParams, "svg.fonttype", "none")  # keeps the text as text
    plot_speed(timings(*sizes), tmp_path / "speed.svg")
    text = re.sub(r"<[^>]*>", " ", (tmp_path / "speed.svg").read_text())
    assert ("nodes of the graph" in text) == axis
    assert ("500 nodes, 2,000 edges" in text) == (not axis)
    for words in ("milliseconds per inference", "milliseconds per step", "euler fp32", "ab2 fp32"):
        assert words in text


def test_pictures_have_the_colours_of_the_report() -> None:
    from adar_deploy.report.page import style

    light = style("charts.css").split("@media")[0]
    named = {f"tone-{i}": tone for i, tone in enumerate(plots.TONES)}
    named |= {"near": plots.NEAR, "far": plots.FAR, "ink": plots.INK, "soft": plots.SOFT, "rule": plots.RULE}
    for name, colour in named.items():
        assert f"--{name}: {colour};" in light
