"""Mutations of JSON and TOML files: a valid file with a few values changed, the same ones for the same seed.

    python -m fuzz.mutations FOLDER SECONDS

FOLDER gets a valid `bundle/`, `run/` and `g.npz`, unless it exists. Commands read each mutated manifest, run
folder or configuration. One line and exit code 2 is a correct result, as is success. A traceback is a bug;
the mutated file is printed.
"""

import contextlib
import copy
import hashlib
import io
import json
import math
import random
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

ODD_VALUES: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, 2**31, 2**63, -(10**30), 10**400, 0.5, -0.0, 1e308, math.inf, math.nan),
    *("", "x", "x" * 1000, "\ud800", "\x1b[2J", "two\nlines", "../..", "nan", "1e999"),
    *([], {}, [[]], [None], [0.5, "x"], {"": None}, {"x": {"x": []}}),
)
TOML = """
threads = 2
[run]
max-steps = 50
solver = "ab2"
exit = "peak"
[train]
epochs = 3
hidden = 16
[bench]
steps = [8, 50]
"""
TOML_VALUES = (
    *(
        "0",
        "-1",
        "1e999",
        "nan",
        "inf",
        "true",
        '""',
        '"x"',
        "[]",
        "[[]]",
        "{}",
        "{x = {x = 1}}",
        "1979-05-27",
    ),
    *("9" * 400, "07:32:00", '"\\u0000"', '["a", 1]', "0x7fffffffffffffffff", "'''\n'''", "=", "]", '"'),
)


def mutated(value: Any, chance: random.Random) -> Any:
    """A copy of a JSON value with one to three changes."""
    value = copy.deepcopy(value)
    for _ in range(chance.randint(1, 3)):
        places = list(_places(value))
        if not places:
            return value
        container, key = chance.choice(places)
        action = chance.random()
        if action < 0.15:
            del container[key]
        elif action < 0.25 and isinstance(container, dict):
            container[chance.choice(["", "x", "\ud800"])] = container.pop(key)
        else:
            container[key] = copy.deepcopy(chance.choice(ODD_VALUES))
    return value


def mutated_toml(chance: random.Random) -> str:
    """Options with one to three lines changed."""
    lines = TOML.strip().splitlines()
    for _ in range(chance.randint(1, 3)):
        index = chance.randrange(len(lines))
        name = lines[index].partition(" = ")[0]
        lines[index] = chance.choice(
            [
                f"{name} = {chance.choice(TOML_VALUES)}",
                f"{chance.choice(['', 'x', 'run', '[', '[[x]]', 'tool'])} = {chance.choice(TOML_VALUES)}",
                f"[{chance.choice(['run', 'tool.adar', 'x.y.z', 'run.max-steps', ''])}]",
                "",
                lines[index][: chance.randrange(len(lines[index]) + 1)],
            ]
        )
    return "\n".join(lines)


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """Each container in a JSON value with each of its keys."""
    keys = value if isinstance(value, dict) else range(len(value)) if isinstance(value, list) else ()
    for key in keys:
        yield value, key
        yield from _places(value[key])


def mutate_manifest(folder: Path, chance: random.Random) -> str:
    """Change the manifest of a bundle, and correct its checksum so that the checks after it are reached."""
    from adar_runtime.bundle.manifest import CHECKSUM, FILE_NAME, checksum_of

    manifest = mutated(json.loads((folder / FILE_NAME).read_text()), chance)
    with contextlib.suppress(UnicodeEncodeError):
        manifest[CHECKSUM] = checksum_of(manifest)
    return _write(folder / FILE_NAME, manifest)


def mutate_run(folder: Path, chance: random.Random) -> str:
    """Change one of the JSON files of a run, and correct its hash so that the checks after it are reached."""
    config, name = folder / "config.json", chance.choice(["config", "metrics", "metrics", "history"])
    file = folder / f"{name}.json"
    text = _write(file, mutated(json.loads(file.read_text()), chance))
    if file != config:
        settings = json.loads(config.read_text())
        settings["files"][file.name] = hashlib.sha256(file.read_bytes()).hexdigest()
        _write(config, settings)
    return text


def mutate_configuration(folder: Path, chance: random.Random) -> str:
    """Write options for the commands."""
    name = chance.choice(["adar.toml", "pyproject.toml"])
    text = mutated_toml(chance)
    if name == "pyproject.toml" and chance.random() < 0.8:
        text = text.replace("[", "[tool.adar.")
    (folder / name).write_text(text)
    return f"{name}: {text}"


def _write(file: Path, content: Any) -> str:
    text = json.dumps(content)
    file.write_text(text)
    return f"{file.name}: {text}"


def command(*words: str) -> tuple[int, str]:
    """Run `adar-deploy WORDS` in this process. Returns the exit code and stderr.

    Raises:
        Exception: What would be a traceback.
    """
    from adar_deploy.cli import main

    before, sys.argv = sys.argv, ["adar-deploy", *words]
    output, errors = io.StringIO(), io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
            main()
    except SystemExit as stop:
        return int(stop.code or 0), errors.getvalue()
    finally:
        sys.argv = before
    return 0, errors.getvalue()


def check(*words: str) -> None:
    """Run a command. It must succeed, or end with one line and exit code 2."""
    code, errors = command(*words)
    assert code in (0, 1, 2), f"exit code {code}"
    lines = [line for line in errors.splitlines() if line.startswith("error: ")]
    assert code != 2 or len(lines) == 1, errors
    assert len(errors) < 4000, "an error is one line, not a page"


Target = tuple[Callable[[Path, random.Random], str], str, tuple[tuple[str, ...], ...]]
TARGETS: dict[str, Target] = {
    "manifest": (
        mutate_manifest,
        "bundle",
        (("inspect", "bundle"), ("inspect", "bundle", "--json"), ("run", "g.npz", "--max-steps", "3")),
    ),
    "run": (
        mutate_run,
        "run",
        (("report", "run", "g.npz", "--budgets", "3"), ("evaluate", "run", "g.npz", "--budgets", "3")),
    ),
    "configuration": (
        mutate_configuration,
        ".",
        (("inspect", "bundle"), ("run", "g.npz", "--max-steps", "3")),
    ),
}
"""What is changed, in which folder, and the commands that read it."""


def make_materials(folder: Path) -> None:
    """Write a small graph, a run that was trained on it, and its bundle."""
    from adar_export import export_bundle
    from adar_runtime import write_graph
    from adar_runtime.graph.synthetic import minesweeper
    from adar_train import ModelConfig, TrainConfig, fit, load_run, save_run

    board = minesweeper(side=12)
    training = TrainConfig(epochs=3, train_steps=3, select_budgets=(3,), exit_budgets=(3, 5))
    fitted = fit([board], ModelConfig(board.width, 2, hidden=16, proxies=4), training)
    save_run(folder / "run", fitted, board, ["board"], training)
    export_bundle(load_run(folder / "run"), folder / "bundle")
    write_graph(folder / "g.npz", board)


def main() -> None:
    """Try mutations of all targets until the time is over, and print those that cause a traceback."""
    source, seconds = Path(sys.argv[1]).resolve(), float(sys.argv[2])
    if not source.exists():
        make_materials(source)
    end, seed, found = time.monotonic() + seconds, 0, 0
    with TemporaryDirectory(prefix="adar-fuzz-") as folder, contextlib.chdir(folder):
        while time.monotonic() < end:
            for name, (mutate, inside, commands) in TARGETS.items():
                chance = random.Random(f"{name} {seed}")  # noqa: S311 - not for secrets
                home = Path(folder) / "home"
                shutil.copytree(source, home)
                what = mutate(home / inside, chance)
                with contextlib.chdir(home):
                    try:
                        check(*chance.choice(commands))
                    except Exception as error:
                        found += 1
                        print(f"{name} {seed}: {type(error).__name__}: {error}\n  {what[:2000]}", flush=True)
                shutil.rmtree(home)
            seed += 1
    print(f"{seed * len(TARGETS):,} mutations, {found} tracebacks")
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
