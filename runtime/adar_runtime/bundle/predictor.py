"""What a bundle and a trained model have in common: predictions and scores for data of any kind."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from adar_runtime import summaries
from adar_runtime.errors import UsageError, warn
from adar_runtime.graph import Graph
from adar_runtime.graph.formats import read_tables
from adar_runtime.graph.in_memory import as_graphs
from adar_runtime.loop.checks import check_budgets
from adar_runtime.loop.result import Result
from adar_runtime.loop.solvers import DEFAULT_SOLVER, Solver
from adar_runtime.loop.stopping import StopRule

if TYPE_CHECKING:
    from adar_runtime.evaluation.evaluate import Evaluation, Subject

BUDGETS = (8, 50, 300)  # of `evaluate`


class Predictor(ABC):
    """A model that predicts and is scored: `Bundle`, and the model that `adar_deploy.train` returns."""

    @abstractmethod
    def run_many(
        self,
        graphs: Iterable[Any],
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
    ) -> Iterator[Result]:
        """Run many graphs, in order."""

    @abstractmethod
    def subject(self) -> "Subject":
        """The model as `evaluate` uses it."""

    @abstractmethod
    def facts(self) -> summaries.Facts:
        """What `repr` and a notebook show."""

    def predict(
        self,
        data: Any,
        budget: int = 300,
        stop: StopRule | str | None = None,
        solver: Solver | str = DEFAULT_SOLVER,
    ) -> Any:
        """Predict for one graph, or for each of several.

        Args:
            data: A `Graph`, a path, a PyG `Data`, a networkx graph or (adjacency, features), as in
                `as_graph`; or several: a list, a PyG `Dataset` or `Batch`.
            budget: Euler steps in the total time.
            stop: A stop rule or its name; the model's own rule by default.
            solver: A solver or its name.

        Returns:
            A `Result`; for several graphs, a list of results in the same order.

        Raises:
            AdarError: The data is not a graph, or it does not fit the model.

        Examples:
            >>> model.predict(data).to_pandas()  # doctest: +SKIP
        """
        graphs = as_graphs(data)
        results = list(self.run_many(graphs.graphs, budget, stop, solver))
        return results if graphs.several else results[0]

    def read_tables(self, nodes: str | Path, edges: str | Path) -> Graph:
        """Read a table of nodes and a table of edges as the model was trained on, for `predict`.

        Args:
            nodes: Table of nodes: .csv, .tsv, .jsonl, .ndjson or .parquet.
            edges: Table of edges in one of these formats.

        Returns:
            The graph. A category that the training did not have becomes zeros, with a warning.

        Raises:
            GraphError: A table cannot be read, or has no column that the model needs.
            UsageError: The model was not trained on tables.

        Examples:
            >>> bundle.predict(bundle.read_tables("people.csv", "friends.csv"))  # doctest: +SKIP
        """
        encoding = self.subject().feature_encoding
        if encoding is None:
            raise UsageError(
                "the model has no feature_encoding, because it was trained on a graph: give predict a graph "
                "with the same features"
            )
        return read_tables(nodes, edges, encoding=encoding).graph

    def evaluate(self, data: Any, budgets: Sequence[int] = BUDGETS, split: int | None = None) -> Any:
        """Score the model on labelled graphs at every step of every budget, like `adar-deploy evaluate`.

        Args:
            data: As in `predict`. The test part is scored if there is one, otherwise all labels.
            budgets: Numbers of steps.
            split: Number of the split, from 0; the split that the model was trained on by default.

        Returns:
            An `Evaluation`; for several graphs with labels of their nodes or pairs, a list of them. Graphs
            with one label each are scored together.

        Raises:
            AdarError: There are no labels, or the data does not fit the model.

        Examples:
            >>> model.evaluate(data).budgets()[-1]["at_exit"]  # doctest: +SKIP
            0.955
        """
        from adar_runtime.evaluation.evaluate import evaluate, grouped

        budgets = check_budgets(budgets)
        subject, graphs = self.subject(), as_graphs(data)
        named = {name: [graph] for name, graph in zip(graphs.names, graphs.graphs, strict=True)}
        done: list[Evaluation] = []
        for name, group in grouped(named, subject.level, f"{len(named):,} graphs").items():
            done.append(evaluate(name, group, subject, budgets, subject.split_for(group[0], split)))
            for warning in done[-1].warnings:
                warn(f"{name}: {warning}")
        return done if graphs.several and len(named) == len(done) else done[0]

    def __repr__(self) -> str:
        return summaries.line(type(self).__name__, self.facts())

    def _repr_html_(self) -> str:
        return summaries.table(type(self).__name__, self.facts())
