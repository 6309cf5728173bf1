"""Charts as inline SVG.

Colours are CSS classes, so that the same drawing works in the light, dark and print styles of the page.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from html import escape

SIZE, WIDE = (500, 290), (760, 330)
RIGHT, TOP, BOTTOM = 16, 14, 42
LEGEND_ROW = 20  # height
MOST_POINTS = 400  # per line: a screen cannot show more
BAR = 14  # height of a bar
LETTER = 6.6  # average width of a character

Point = tuple[float, float]


@dataclass(frozen=True)
class Axis:
    """The label, scale and number format of an axis."""

    label: str
    log: bool = False
    show: Callable[[float], str] = field(default=lambda value: f"{value:g}")
    bounds: tuple[float, float] | None = None  # None: the range of the data


@dataclass(frozen=True)
class Line:
    """A series. `shade` (0 to 1) is for ordered series, such as budgets; `tone` is for all others."""

    name: str
    points: Sequence[Point]
    tone: int = 0
    shade: float | None = None
    dotted: bool = False
    dots: bool = False

    @property
    def colour(self) -> str:
        """The attributes of the SVG element."""
        if self.dotted:
            return 'class="rule"'
        if self.shade is None:
            return f'class="tone-{self.tone}"'
        return f'class="ramp" style="--share:{round(100 * self.shade)}%"'


@dataclass(frozen=True)
class Mark:
    """A marked point on the line with this index."""

    line: int
    point: Point
    text: str


def line_chart(
    lines: Sequence[Line],
    x: Axis,
    y: Axis,
    marks: Sequence[Mark] = (),
    *,
    title: str,
    size: tuple[int, int] = SIZE,
) -> str:
    """Lines over two axes, with marks, and a legend where there are several named lines."""
    lines = [Line(**vars(line) | {"points": _drawable(line.points, x, y)}) for line in lines]
    points = [point for line in lines for point in line.points]
    if not points:
        return ""
    named = [line for line in lines if line.name]
    legend, rows = _legend(named, size[0]) if len(named) > 1 else ([], 0)
    plot = _Plot.of(x, y, points, size, TOP + rows * LEGEND_ROW)
    parts = [*legend, *plot.grid(), *(plot.line(line) for line in lines)]
    parts += [plot.mark(mark, lines[mark.line]) for mark in marks]
    return svg(parts, *size, title)


def svg(parts: Sequence[str], width: float, height: float, title: str) -> str:
    """An SVG element that scales to the available width, with a title for screen readers."""
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" style="max-width:{width:g}px" role="img" '
        f'aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg"><title>{escape(title)}</title>{"".join(parts)}</svg>'
    )


def heat_grid(counts: Sequence[Sequence[int]], names: Sequence[str], *, title: str) -> str:
    """A matrix of counts. The opacity of a cell is its fraction of the row."""
    size = len(counts)
    cell = max(13.0, min(76.0, 560 / size))
    left = 24 + LETTER * min(26, max(len(name) for name in names))
    top = 26 if size <= 12 else 6
    parts = []
    for i, row in enumerate(counts):
        parts.append(_label(left - 8, top + (i + 0.5) * cell + 4, _cut(names[i], 26), "end"))
        for j, count in enumerate(row):
            share = count / (sum(row) or 1)
            x, y = left + j * cell, top + i * cell
            note = f"{names[i]} predicted as {names[j]}: {count:,} ({share:.1%})"
            parts.append(
                f'<g><title>{escape(note)}</title><rect class="heat" x="{x:.1f}" y="{y:.1f}" rx="2" '
                f'width="{cell - 1:.1f}" height="{cell - 1:.1f}" fill-opacity="{0.05 + 0.95 * share:.3f}"/>'
            )
            if cell >= 34:
                kind = "on-heat" if share > 0.5 else "label"
                parts.append(_label(x + cell / 2, y + cell / 2 + 4, f"{count:,}", kind=kind))
            parts.append("</g>")
    if size <= 12:  # a narrower column has no room for its name; the tooltip of a cell shows it
        room = int(cell / LETTER)
        parts += [_label(left + (j + 0.5) * cell, top - 8, _cut(n, room)) for j, n in enumerate(names)]
    return svg(parts, left + size * cell + 4, top + size * cell + 4, title)


def scatter(points: Sequence[Point], x: Axis, y: Axis, *, title: str, side: int = 380) -> str:
    """Points, and the diagonal where both coordinates are equal."""
    points = points[:: max(1, len(points) // 1500)]
    low, high = min(min(p) for p in points), max(max(p) for p in points)
    bounds = (low, high if high > low else low + 1)
    plot = _Plot.of(Axis(x.label, bounds=bounds), Axis(y.label, bounds=bounds), [bounds], (side, side), TOP)
    diagonal = plot.line(Line("", [(v, v) for v in bounds], dotted=True))
    dots = [f'<circle class="dot" cx="{plot.x(a):.1f}" cy="{plot.y(b):.1f}" r="2"/>' for a, b in points]
    return svg([*plot.grid(), diagonal, *dots], side, side, title)


def bars(
    series: Mapping[str, Sequence[float]],
    names: Sequence[str],
    *,
    title: str,
    show: Callable[[float], str],
    width: int = SIZE[0],
) -> str:
    """Horizontal bars: for each name, one bar of each series, with its value."""
    legend, rows = _legend([Line(name, [], tone=i) for i, name in enumerate(series)], width)
    left = 16 + LETTER * min(26, max(map(len, names)))
    high = max((value for values in series.values() for value in values), default=0) or 1
    longest = max(len(show(value)) for values in series.values() for value in values)
    room = width - left - 12 - LETTER * longest
    parts, y = list(legend), 10.0 + rows * LEGEND_ROW
    for i, name in enumerate(names):
        parts.append(_label(left - 8, y + BAR * len(series) / 2 + 4, _cut(name, 26), "end"))
        for tone, values in enumerate(series.values()):
            length = room * values[i] / high
            parts.append(
                f'<rect class="tone-{tone} bar" x="{left:.1f}" y="{y:.1f}" width="{length:.1f}" '
                f'height="{BAR - 2}"/>'
            )
            parts.append(_label(left + length + 6, y + BAR - 4, show(values[i]), "start"))
            y += BAR
        y += 8
    return svg(parts, width, y + 4, title)


@dataclass(frozen=True)
class _Scale:
    """Maps values to pixels."""

    axis: Axis
    low: float
    high: float
    start: float
    end: float

    @classmethod
    def of(cls, axis: Axis, values: Sequence[float], start: float, end: float) -> "_Scale":
        low, high = axis.bounds or (min(values), max(values))
        if axis.log:
            low, high = math.log10(low), math.log10(high)
        if high - low < 1e-12:
            low, high = low - 0.5, high + 0.5
        elif axis.bounds is None:
            room = 0.04 * (high - low) if start > end else 0.0  # a margin above and below, none at the sides
            low, high = low - room, high + room
        return cls(axis, low, high, start, end)

    def __call__(self, value: float) -> float:
        at = math.log10(value) if self.axis.log else value
        return self.start + (self.end - self.start) * (at - self.low) / (self.high - self.low)

    def ticks(self) -> list[float]:
        if self.axis.log:
            return _log_ticks(self.low, self.high)
        raw = (self.high - self.low) / 5
        unit = 10 ** math.floor(math.log10(raw))
        step = next(unit * f for f in (1, 2, 2.5, 5, 10) if raw <= unit * f * 1.0001)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor((self.high - first * step) / step + 1e-9)
        return [round((first + i) * step, 12) for i in range(count + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Powers of ten, at most about seven; also 2 and 5 times each where the range is short."""
    first, last = math.floor(low + 1e-9), math.ceil(high - 1e-9)
    if high - low < 2.2:
        values = [f * 10.0**e for e in range(first, last + 1) for f in (1, 2, 5)]
    else:
        values = [10.0**e for e in range(first, last + 1, max(1, (last - first) // 6))]
    return [value for value in values if low - 1e-9 <= math.log10(value) <= high + 1e-9]


@dataclass(frozen=True)
class _Plot:
    """The area between two axes."""

    x: _Scale
    y: _Scale

    @classmethod
    def of(cls, x: Axis, y: Axis, points: Sequence[Point], size: tuple[int, int], top: float) -> "_Plot":
        """Leave room on the left for the numbers of the vertical axis."""
        width, height = size
        up = _Scale.of(y, [point[1] for point in points], height - BOTTOM, top)
        left = 34 + LETTER * max((len(y.show(value)) for value in up.ticks()), default=0)
        return cls(_Scale.of(x, [point[0] for point in points], left, width - RIGHT), up)

    def grid(self) -> list[str]:
        """Grid lines, tick numbers and axis labels."""
        left, right, bottom, top = self.x.start, self.x.end, self.y.start, self.y.end
        parts = []
        for value in self.y.ticks():
            at = self.y(value)
            parts.append(f'<line class="grid" x1="{left:g}" x2="{right:g}" y1="{at:.1f}" y2="{at:.1f}"/>')
            parts.append(_label(left - 8, at + 4, self.y.axis.show(value), "end"))
        parts.append(f'<line class="axis" x1="{left:g}" x2="{right:g}" y1="{bottom:g}" y2="{bottom:g}"/>')
        for value in self.x.ticks():
            at = self.x(value)
            parts.append(
                f'<line class="axis" x1="{at:.1f}" x2="{at:.1f}" y1="{bottom:g}" y2="{bottom + 4:g}"/>'
            )
            parts.append(_label(at, bottom + 17, self.x.axis.show(value)))
        parts.append(_label((left + right) / 2, bottom + 36, self.x.axis.label))
        parts.append(
            f'<text class="label" transform="translate(13 {(top + bottom) / 2:g}) rotate(-90)" '
            f'text-anchor="middle">{escape(self.y.axis.label)}</text>'
        )
        return parts

    def line(self, line: Line) -> str:
        pixels = [(f"{self.x(a):.1f}", f"{self.y(b):.1f}") for a, b in line.points]
        path = " ".join(f"{a},{b}" for a, b in pixels)
        style = ' stroke-dasharray="3 4"' if line.dotted else ""
        name = f"<title>{escape(line.name)}</title>" if line.name else ""
        dots = "".join(f'<circle cx="{a}" cy="{b}" r="3"/>' for a, b in pixels) if line.dots else ""
        return f'<g {line.colour}>{name}<polyline points="{path}" fill="none"{style}/>{dots}</g>'

    def mark(self, mark: Mark, line: Line) -> str:
        x, y = self.x(mark.point[0]), self.y(mark.point[1])
        ring = f'<circle class="mark" cx="{x:.1f}" cy="{y:.1f}" r="5"/>'
        return f"<g {line.colour}><title>{escape(mark.text)}</title>{ring}</g>"


def _label(x: float, y: float, text: str, anchor: str = "middle", kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _legend(lines: Sequence[Line], width: float) -> tuple[list[str], int]:
    """A swatch and a name for each line, and the number of rows that they take."""
    parts: list[str] = []
    x, row = 8.0, 0
    for line in lines:
        needed = 24 + LETTER * len(line.name) + 18
        if x + needed > width and x > 8:
            x, row = 8.0, row + 1
        y = 10 + row * LEGEND_ROW
        parts.append(f'<g {line.colour}><line x1="{x:g}" x2="{x + 18:g}" y1="{y}" y2="{y}"/></g>')
        parts.append(_label(x + 24, y + 4, line.name, "start"))
        x += needed
    return parts, row + 1


def _drawable(points: Sequence[Point], x: Axis, y: Axis) -> list[Point]:
    """The points that both axes can show, thinned out. The last point is always kept."""
    kept = [
        (float(a), float(b))
        for a, b in points
        if math.isfinite(a) and math.isfinite(b) and (a > 0 or not x.log) and (b > 0 or not y.log)
    ]
    every = max(1, math.ceil(len(kept) / MOST_POINTS))
    return kept[::every] + (kept[-1:] if kept and (len(kept) - 1) % every else [])


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else f"{text[: max(1, longest - 1)]}…"
