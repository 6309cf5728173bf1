"""The paper's experiments, measured with this code. `python -m benchmarks.paper --help` starts them.

- `table`: results on disk, one row per training; `tasks`: what a row needs; `runner`: runs what is missing
- `worker`: the child process of one row; `training`: trainings that several parts use
- `more`, `transductive`, `ablations`, `compute`, `theory`, `zero_shot`: the parts
- `existing_runs`: rows from runs that exist already
- `page`, `pictures`, `published`: benchmarks/paper.md from the table alone
"""
