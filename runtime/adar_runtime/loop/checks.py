"""Checks of what a caller gives to a run."""

from collections.abc import Collection, Sequence

import numpy as np

from adar_runtime.errors import UsageError, short

MAX_BUDGET = 2**53  # above it, s / S and (s + 1) / S are the same float


def check_budget(budget: int) -> int:
    """The budget. Raises a UsageError if it is not a whole number from 1 to MAX_BUDGET.

    A number of numpy becomes one of Python: those of 8 bits or without a sign overflow.
    """
    if isinstance(budget, bool) or not isinstance(budget, int | np.integer):
        raise UsageError(f"the budget is {short(repr(budget))}: choose a whole number of steps")
    if budget < 1:
        raise UsageError(f"the budget is {budget}: choose at least 1 step")
    if budget > MAX_BUDGET:
        raise UsageError(f"the budget is above {MAX_BUDGET}: choose a smaller one")
    return int(budget)


def check_budgets(budgets: Sequence[int]) -> list[int]:
    """The budgets. Raises a UsageError for what is not a list of at least one budget."""
    if isinstance(budgets, str | bytes) or not isinstance(budgets, Collection) or not len(budgets):
        raise UsageError(
            f"budgets is {short(repr(budgets))}: give a list of numbers of steps, such as [8, 50]"
        )
    return [check_budget(budget) for budget in budgets]


def check_kind(name: str, value: object, kind: type, wanted: str) -> None:
    """Refuse a name, a class or a number in place of an object: it would fail later, less clearly."""
    if isinstance(value, type) or not isinstance(value, kind):
        raise UsageError(f"{name} is {short(repr(value))}: give {wanted}")
