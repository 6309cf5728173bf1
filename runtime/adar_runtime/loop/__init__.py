"""The recurrence: the loop, the time schedule, solvers and stop rules."""
