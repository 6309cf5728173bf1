"""`README.md` of a bundle: a model card in the format of the Hugging Face hub, made from the manifest."""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from adar_runtime.bundle.manifest import Manifest
from adar_runtime.bundle.proven_solver import default_solver
from adar_runtime.errors import ExportError, reason
from adar_runtime.formatting import exit_rule, predicted
from adar_runtime.graph import NODE, PARTS, FeatureEncoding
from adar_runtime.graph.labels import listed

TITLES = {"roc_auc": "ROC-AUC", "accuracy": "accuracy", "r2": "R²"}
MOST_NAMES = 50  # class names and groups of columns that the card lists
MOST_GRAPHS = 10  # names of training graphs
HASH = "\n<!-- sha256 of the text above, as adar-deploy wrote it: "


def model_card(manifest: Manifest) -> str:
    """Return the text of the card: a YAML header for the hub, and sections for people.

    Args:
        manifest: The complete manifest, with the measurements of the export.

    Returns:
        Markdown text. The same manifest gives the same text.

    Raises:
        ExportError: If the run's metrics are damaged: the manifest contains them as they are.
    """
    try:
        return _card(manifest)
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
        raise ExportError(
            f"the run's metrics cannot be shown in a model card ({reason(error)}): train again"
        ) from error


def with_hash(card: str) -> str:
    """Return a card with a last line that has its hash, for `is_edited`."""
    return f"{card}{HASH}{hashlib.sha256(card.encode()).hexdigest()} -->\n"


def is_edited(file: bytes) -> bool:
    """Return whether a file is not a card as any version of adar-deploy wrote it."""
    card, _, _ = file.decode(errors="replace").rpartition(HASH)
    return file != with_hash(card).encode()


def _card(manifest: Manifest) -> str:
    sections = [
        f"# {_plain(manifest.name)}",
        _plain(manifest.description, lines=True),
        _facts(manifest),
        _metrics(manifest),
        _how_it_runs(manifest),
        _inputs(manifest),
        _limits(manifest),
        _how_to_run(manifest),
    ]
    return f"---\n{_header(manifest)}---\n\n" + "\n\n".join(filter(None, sections)) + "\n"


def task_of(manifest: Manifest) -> str:
    """Return the task in the words of the hub, such as "node-classification"."""
    unit = {"node": "node", "edge": "link", "graph": "graph"}[manifest.level]
    return f"{unit}-{'regression' if manifest.regression else 'classification'}"


def describe_model(manifest: Manifest) -> str:
    """Return the description of a model whose author gave none."""
    what = predicted(manifest.targets, manifest.level, regression=manifest.regression)
    described = "described " if manifest.targets is None else ""
    return f"AdaR, a recurrent graph model that predicts {described}{what}, trained on {_data(manifest)}."


def _data(manifest: Manifest) -> str:
    return listed([*map(str, manifest.training.get("data", []))], MOST_GRAPHS) or "unknown data"


def _header(manifest: Manifest) -> str:
    """Return the YAML header. A JSON text is valid YAML, so names need no other quotes."""
    task = task_of(manifest)
    lines = ["library_name: adar-deploy", "pipeline_tag: graph-ml", "tags:"]
    lines += [f"- {tag}" for tag in ("adar", "graph-ml", "onnx", task)]
    scores = _scores(manifest.training)
    if scores:
        data = _data(manifest)
        kind = manifest.training.get("metric", "metric")
        lines += ["model-index:", f"- name: {_quoted(manifest.name)}", "  results:"]
        lines += ["  - task:", "      type: graph-ml", f"      name: {_quoted(task.replace('-', ' '))}"]
        lines += [
            "    dataset:",
            f"      name: {_quoted(data)}",
            f"      type: {_quoted(data)}",
            "    metrics:",
        ]
        for part, value in scores.items():
            lines += [f"    - type: {_quoted(kind)}", f"      value: {value:.6g}"]
            lines += [f"      name: {_quoted(f'{TITLES.get(kind, kind)}, {part}')}"]
    return "\n".join(lines) + "\n"


def _facts(manifest: Manifest) -> str:
    size = sum(file.bytes for file in manifest.onnx_models.values()) / 1e6
    rows = {
        "version": manifest.version,
        "created": manifest.created_at,
        "task": task_of(manifest),
        "opset, precision": f"{manifest.opset}, {manifest.precision}",
        "size": f"{size:.1f} MB",
        "width, proxies": f"{manifest.hidden}, {manifest.proxies}",
        "trained on": _data(manifest),
        "made with": ", ".join(f"{name} {number}" for name, number in manifest.versions.items()),
    }
    return _table(["", ""], rows.items())


def _metrics(manifest: Manifest) -> str:
    training = manifest.training
    scores = _scores(training)
    if not scores:
        return ""
    kind = training.get("metric", "metric")
    intervals = training.get("intervals", {})
    rows = [(part, f"{value:.4f}", *_interval(intervals.get(part))) for part, value in scores.items()]
    text = f"## Metrics\n\n{_table(['part', TITLES.get(kind, kind), '95 % interval', 'labels'], rows)}"
    budgets = training.get("budgets", {})
    if budgets:
        parts = [part for part in PARTS if any(part in row for row in budgets.values())]
        counted = [(budget, *(_number(row.get(part)) for part in parts)) for budget, row in budgets.items()]
        text += (
            "\n\nA budget is the number of Euler steps. The same model runs with every budget; the stop "
            f"rule was the model's own.\n\n{_table(['budget', *parts], counted)}"
        )
    return text


def _how_it_runs(manifest: Manifest) -> str:
    lines = [f"- Stop rule: {_plain(exit_rule(manifest.exit))}."]
    if "exit_reason" in manifest.training:
        lines[0] += f" Chosen on validation labels: {_plain(manifest.training['exit_reason'])}."
    lines.append(f"- Default solver: {_plain(default_solver(manifest))}.")
    calls = manifest.convergence.get("calls", {})
    if calls:
        needed = ", ".join(f"{solver} {count}" for solver, count in calls.items())
        lines.append(
            f"- Cell calls for the same states as {manifest.convergence['reference']} Euler steps: {needed}."
        )
    return "## Stop rule and solver\n\n" + "\n".join(lines)


def _inputs(manifest: Manifest) -> str:
    lines = [f"A graph with {manifest.features:,} features per node."]
    if manifest.in_context:
        lines = [
            "A graph with any number of features per node. Its classes come from the graph itself: from "
            "descriptions (`target_x`), from known labels (`y` with `train_mask`), or from both."
        ]
    if manifest.level != NODE:
        lines.append(
            "Each prediction is for a pair of nodes."
            if manifest.level == "edge"
            else "One prediction per graph."
        )
    if manifest.targets is None and not manifest.in_context:
        lines.append("The graph describes its classes (`target_x`).")
    text = f"## Inputs and outputs\n\n{' '.join(lines)}"
    text += _table_columns(manifest.feature_encoding) or _feature_columns(manifest)
    names = manifest.class_names or ()
    if names:
        quoted = [f'"{_plain(name)}"' for name in names[:MOST_NAMES]]
        text += f"\n\nClasses: {', '.join(quoted)}.{_more(len(names))}"
    return text


def _table_columns(encoding: FeatureEncoding | None) -> str:
    """The columns of the table that the model was trained on, and what became of them."""
    if encoding is None or not encoding.columns:
        return ""
    rows = [
        (
            one.name,
            f"{len(one.categories):,} categories" if one.categories else "number",
            "may be empty" if one.missing else "",
        )
        for one in encoding.columns[:MOST_NAMES]
    ]
    columns = ["column of the table", "type", "values"]
    return f"\n\n{_table(columns, rows)}{_more(len(encoding.columns))}"


def _feature_columns(manifest: Manifest) -> str:
    groups = manifest.feature_schema or []
    rows = [(_columns(group["columns"]), group["type"]) for group in groups[:MOST_NAMES]]
    return f"\n\n{_table(['feature columns', 'type'], rows)}{_more(len(groups))}" if rows else ""


def _limits(manifest: Manifest) -> str:
    parity = manifest.parity
    lines = [
        f"- The exported models agree with PyTorch to {parity['needed']:.1e} (allowed "
        f"{parity['tolerance']:.0e}), relative to the largest entry of each state.",
        *_validity(manifest),
        "- Nodes receive messages along incoming edges only: give both directions of an undirected graph.",
    ]
    if not manifest.behaves_like_ode:
        lines.append("- Only Euler's method: the cell does not behave like an ODE.")
    return "## Limits\n\n" + "\n".join(lines)


def _validity(manifest: Manifest) -> list[str]:
    """For which graphs the metrics hold, in a list for the section of limits."""
    if manifest.in_context:
        return [
            "- No metric holds for every new graph: keep some labels of yours out of `train_mask`, and "
            "`adar-deploy evaluate` scores them."
        ]
    return [
        "- The metrics hold for graphs like the training data. `adar-deploy drift` compares a graph with it."
    ]


def _how_to_run(manifest: Manifest) -> str:
    unknown = ", allow_unknown_model=True" if manifest.aggregation == "edges" else ""
    given, read = "graph.npz", 'adar_runtime.read_graph("graph.npz")'
    if manifest.feature_encoding is not None:
        given, read = "nodes.csv --edges edges.csv", 'bundle.read_tables("nodes.csv", "edges.csv")'
    return (
        "## How to run\n\n"
        "```sh\npip install 'adar-deploy[cpu]'\n"
        f"adar-deploy run {given} --bundle . --output predictions.csv\n```\n\n"
        "```python\nimport adar_runtime\n\n"
        f'bundle = adar_runtime.load("."{unknown})\n'
        f"result = bundle.run({read}, budget=300)\n"
        "result.predictions\n```"
    )


def _scores(training: Mapping[str, Any]) -> dict[str, float]:
    return {part: training[part] for part in PARTS[::-1] if isinstance(training.get(part), float)}


def _interval(found: Mapping[str, Any] | None) -> tuple[str, str]:
    if not found:
        return "", ""
    low, high = found["interval"]
    return f"{low:.4f} to {high:.4f}", f"{found['count']:,}"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"


def _columns(bounds: Sequence[int]) -> str:
    first, last = bounds
    return f"{first}" if first == last else f"{first} to {last}"


def _more(count: int) -> str:
    return f" And {count - MOST_NAMES:,} more." if count > MOST_NAMES else ""


def _table(columns: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    lines = [columns, ["---"] * len(columns), *([_plain(cell) for cell in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _plain(value: object, *, lines: bool = False) -> str:
    """Return text that Markdown does not read as markup: names come from the user's data."""
    text = str(value) if lines else " ".join(str(value).split())
    for letter in "\\`*[]<>|":
        text = text.replace(letter, f"\\{letter}")
    return text


def _quoted(value: object) -> str:
    return json.dumps(str(value), ensure_ascii=False)
