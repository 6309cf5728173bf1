"""The options for a pair of tables, nodes and edges, of the commands that take graphs."""

import shlex
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from adar_deploy.console import printable
from adar_deploy.option_groups import OptionGroup
from adar_deploy.paths import PACKAGED

if TYPE_CHECKING:
    from adar_runtime import Graph
    from adar_runtime.graph import FeatureEncoding
    from adar_runtime.graph.formats import Imported, TableChoice


class Labels(StrEnum):
    """Held to adar_runtime.graph.formats.LABEL_KINDS by a test."""

    classes = "classes"
    numbers = "numbers"


@dataclass(frozen=True)
class TableOptions(OptionGroup):
    """The values of the options. Without `edges`, graphs are graph files."""

    edges: Annotated[
        Path | None,
        typer.Option(
            "--edges",
            help="Table of edges. The graph is then a table of nodes: .csv, .tsv, .jsonl or .parquet.",
            readable=False,
        ),
    ] = None
    id: Annotated[
        str | None,
        typer.Option("--id", help="Column of the node ids.", show_default="id, node, or the first column"),
    ] = None
    label: Annotated[
        str | None,
        typer.Option(
            "--label", help="Column or attribute of the labels.", show_default="y, label, class or target"
        ),
    ] = None
    labels: Annotated[
        Labels | None,
        typer.Option(
            "--labels",
            help="Labels are classes, or regression targets (numbers).",
            show_default="numbers if a label has a fraction",
        ),
    ] = None
    features: Annotated[
        str | None,
        typer.Option(
            "--features", help="Columns that become features, comma-separated.", show_default="all others"
        ),
    ] = None
    source: Annotated[
        str | None,
        typer.Option(
            "--source", help="Column of --edges with the ids that edges start from.", show_default="source"
        ),
    ] = None
    target: Annotated[
        str | None,
        typer.Option(
            "--target", help="Column of --edges with the ids that edges go to.", show_default="target"
        ),
    ] = None
    both_ways: Annotated[
        bool | None,
        typer.Option(
            "--both-ways/--one-way",
            help="Add the reverse of every edge.",
            show_default="as the model was trained, or one way",
        ),
    ] = None

    def check(self, graphs: list[Any]) -> None:
        """Raise a UsageError for options without --edges, and for --edges with several graphs."""
        from adar_runtime.errors import UsageError

        given = [one.name for one in fields(self) if getattr(self, one.name) is not None]
        if self.edges is None and given:
            raise UsageError(
                f"--{given[0].replace('_', '-')} is for a table of nodes: add --edges, the table of its edges"
            )
        if self.edges is not None and len(graphs) != 1:
            raise UsageError(f"--edges needs exactly one table of nodes; got {len(graphs)}")

    def read(self, path: str | Path, encoding: "FeatureEncoding | None" = None) -> "Imported":
        """The graph of the two tables, and notes on what was read and how."""
        from adar_runtime.graph.formats import read_tables

        assert self.edges is not None
        return read_tables(path, self.edges, self.choice(), encoding)

    def choice(self) -> "TableChoice":
        """Which columns hold what."""
        from adar_runtime.graph.formats import TableChoice

        named = None if self.features is None else tuple(self.features.split(","))
        return TableChoice(
            id=self.id,
            label=self.label,
            labels=self.labels and self.labels.value,
            features=named and tuple(name.strip() for name in named),
            source=self.source,
            target=self.target,
            both_ways=self.both_ways,
        )

    def reader(
        self, load: "Callable[[str], list[Graph]]", note: Callable[[str], None]
    ) -> "Callable[[str], list[Graph]]":
        """How graphs are made from a name, without a model: `load`, or one graph from the two tables."""

        def read(name: str) -> "list[Graph]":
            imported = self.read(name)
            for line in imported.notes:
                note(printable(f"{name}: {line}"))
            return [imported.graph]

        return load if self.edges is None else read

    def read_for_model(
        self,
        path: Path,
        model: Path,
        encoding: "FeatureEncoding | None",
        note: Callable[[str], None] = lambda _: None,
    ) -> "Graph":
        """The graph in a file, or of the two tables as the model was trained on."""
        from adar_runtime import read_graph
        from adar_runtime.errors import UsageError

        if self.edges is None:
            return read_graph(path)
        if encoding is None and model == PACKAGED:
            words = ("adar-deploy", "data", "convert", str(path), "graph.npz", "--edges", str(self.edges))
            raise UsageError(
                "the pretrained model reads graph files, not tables: convert the tables first, with "
                + shlex.join(words)
            )
        if encoding is None:
            raise UsageError(
                f"{model} has no feature_encoding, because it was trained on a graph file: convert the "
                "tables with adar-deploy data convert, as for the training"
            )
        imported = self.read(path, encoding)
        for line in imported.notes:
            note(printable(f"{path}: {line}"))
        return imported.graph

    def read_all_for_model(
        self, path: Path, model: Path, encoding: "FeatureEncoding | None", note: Callable[[str], None]
    ) -> "list[Graph]":
        """The same, with all graphs of a file that has many."""
        from adar_runtime.graph.formats import read_graphs

        return read_graphs(path) if self.edges is None else [self.read_for_model(path, model, encoding, note)]
