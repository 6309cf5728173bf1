"""What the most similar nodes say about the class of a node.

All other parts of a start are linear in the smoothed features: one direction for each class. The nodes of
a class can also be in several places. So the score of a class grows with its share among the most similar
nodes. Similar nodes are near in the directions of the discriminant analysis; they need not be neighbours in
the graph.
"""

from dataclasses import dataclass

import numpy as np

from adar_runtime.graph import Floats, Integers
from adar_runtime.in_context.features import unit_rows
from adar_runtime.interruption import interruption_point

SIMILAR = 20  # nodes that have a part in the classes of a node
LARGEST = 4_096  # nodes that every node is compared with; in larger graphs, they are drawn
ROWS = 256  # nodes that are compared at once
LEAST_WEIGHT = 1e-3  # of all similar nodes together; a smaller one is rounding


@dataclass(frozen=True)
class ComparedNodes:
    """Nodes with their classes, known or predicted. Other nodes are compared with them.

    Attributes:
        numbers: The numbers of the nodes in their graph, [s].
        root: The directions of the discriminant analysis, [k, k].
        rows: Unit rows along these directions, [s, k].
        psi: The classes, [s, c], or a smaller number of directions of them.
    """

    numbers: Integers
    root: Floats
    rows: Floats
    psi: Floats

    @classmethod
    def of(cls, features: Floats, root: Floats, psi: Floats) -> "ComparedNodes":
        """Choose nodes of a graph, with the features [n, k] and the classes [n, c] of all its nodes."""
        numbers = np.arange(len(features))
        if len(features) > LARGEST:
            numbers = np.sort(np.random.default_rng(0).permutation(len(features))[:LARGEST])
        return cls(numbers, root, unit_rows(features[numbers] @ root), psi[numbers])

    @classmethod
    def nothing(cls, columns: int, classes: int) -> "ComparedNodes":
        """No nodes: all shares are zero."""
        empty = np.zeros((0, columns), np.float32)
        return cls(np.arange(0), np.eye(columns, dtype=np.float32), empty, np.zeros((0, classes), np.float32))

    def shares(self, features: Floats, numbers: Integers) -> Floats:
        """The share of each class among the nodes that are most similar to nodes with these features [n, k].

        A node is not compared with itself: `numbers` [n] are those in the graph of the compared nodes. The
        weight of a similar node is its cosine minus that of the first node that is left out. So rounding
        cannot change much where several nodes are equally similar.

        Returns:
            [n, c]. The sum of a row is nearly 1, or 0 where all nodes are equally similar. With directions of
            the classes in `psi`, the shares are along these.
        """
        found = np.zeros((len(features), self.psi.shape[1]), np.float32)
        count = min(SIMILAR + 1, len(self.numbers) - 1)
        if count < 1:
            return found
        for start in range(0, len(features), ROWS):
            interruption_point()
            some = slice(start, start + ROWS)
            cosines = unit_rows(features[some] @ self.root) @ self.rows.T
            cosines[numbers[some, None] == self.numbers] = -2
            nearest = np.argpartition(cosines, -count, axis=1)[:, -count:]
            weights = np.take_along_axis(cosines, nearest, axis=1)
            weights -= weights.min(axis=1, keepdims=True)
            weights /= weights.sum(axis=1, keepdims=True) + np.float32(LEAST_WEIGHT)
            for place in range(count):  # all together would be [n, s, c] numbers
                found[some] += weights[:, [place]] * self.psi[nearest[:, place]]
        return found
