"""What every command has to have. A command that is added is held to it by being added."""

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer

from adar_deploy import console
from adar_deploy.cli import COMMANDS, app
from adar_deploy.configuration import parameters_of
from adar_deploy.options import PrecisionName
from adar_deploy.training_options import Preset
from adar_export.precision import PRECISIONS
from adar_runtime import Converged, Peak, load
from adar_train import ModelConfig, TrainConfig
from adar_train.baselines import BASELINES
from adar_train.cell import HIDDEN, PROXIES
from adar_train.config import PRESETS, preset
from adar_train.prepare import FEWEST_PROXIES, SMALL_HIDDEN
from adar_train.search import NARROW, SLOWER, STRONGER, WIDE
from tests.bundles import edit

GROUP = typer.main.get_command(app)
PARAMETERS = list(parameters_of(GROUP))
COMMAND_WORDS = sorted({parameter.command for parameter in PARAMETERS})
TAKEN = {"ADAR_DATA", "ADAR_MAX_BYTES", "ADAR_CONFIG"}  # that mean something else
NOT_OF_AN_OPTION = {"--help", "--version", "--config"}


def command_of(words: tuple[str, ...]):
    command = GROUP
    for word in words:
        command = command.commands[word]
    return command


def options_of(words: tuple[str, ...]) -> set[str]:
    return {option for one in command_of(words).params for option in one.opts}


@pytest.mark.parametrize("words", COMMAND_WORDS, ids=" ".join)
def test_every_command_has_json_a_short_help_and_a_true_example(adar, words: tuple[str, ...]) -> None:
    code, out, _ = adar(*words, "-h")
    assert code == 0
    assert "--json" in options_of(words)
    assert "Example: adar-deploy" in " ".join(out.split())
    examples = re.findall(r"\[not dim green\](.+?)\[/\]", command_of(words).help)
    assert examples
    for example in examples:
        program, *given = shlex.split(example.split(">")[0])
        assert program == "adar-deploy"
        called = tuple(given[:2]) if tuple(given[:2]) in COMMAND_WORDS else tuple(given[:1])
        assert called in COMMAND_WORDS
        assert {word for word in given if re.fullmatch(r"-o|--[a-z-]+", word)} <= options_of(called)


@pytest.mark.parametrize("width", [60, 140])
def test_help_fits_the_window(adar, monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(console.out, "_width", width)
    for words in [(), *COMMAND_WORDS]:
        _, out, _ = adar(*words, "-h")
        assert max(map(len, out.splitlines())) <= width


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("words", COMMAND_WORDS, ids=" ".join)
def test_help_cuts_nothing(adar, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], width: int) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    shown = adar(*words, "-h")[1].replace("│", " ").split()
    plain = {part.strip("[]().,;:<>") for word in shown for part in (word, *word.split("|"))}
    for one in command_of(words).params:
        choices = one.type_descriptor.choices or ()
        default = one.show_default if isinstance(one.show_default, str) else str(one.default or "")
        help_words = f"{one.help} {default}".split()
        names = [name for name in (*one.opts, *one.secondary_opts) if name.startswith("-")]
        for word in (*names, *map(str, choices), *(help_words if width == 80 else ())):
            assert word.strip("[]().,;:") in plain, (one.name, word)
    if any(one.name == "graphs" for one in command_of(words).params):
        assert {"GRAPHS...", "[GRAPHS]..."} & set(shown)  # in the usage line


def test_commands_are_grouped_by_task(adar) -> None:
    _, out, _ = adar("-h")
    places = [out.index(f"─ {task} ─") for task in COMMANDS]
    assert places == sorted(set(places))
    assert "adar.toml" in out


def test_types_are_words_and_a_name_that_switches_off_is_there_once(adar) -> None:
    for words in [(), ("data",), *COMMAND_WORDS]:
        assert not re.search(r"<(bool|path|list)", adar(*words, "-h")[1]), words
    shown = adar("train", "-h")[1]
    assert shown.count("--no-search") == 1
    assert shown.count("--no-mixed-precision") == 1


def test_a_name_means_the_same_in_every_command() -> None:
    """A flag in one is a flag in all, and a short name is of one long name or its like."""
    kinds: dict[str, set[bool]] = {}
    short: dict[str, set[str]] = {}
    for one in PARAMETERS:
        flag = bool(getattr(one.parsed_by, "is_flag", False))
        for option in one.parsed_by.opts:
            kinds.setdefault(option, set()).add(flag)
            if option.startswith("-") and not option.startswith("--"):
                short.setdefault(option, set()).add(one.name)
    assert {option for option, found in kinds.items() if len(found) > 1} == set()
    assert short == {"-o": {"out", "output"}, "-q": {"quiet"}}


def test_no_option_hears_a_variable_that_means_something_else() -> None:
    heard = {name for one in PARAMETERS if one.parsed_by.nargs == 1 for name in one.variables}
    assert not heard & TAKEN
    assert "ADAR_RUN_MAX_STEPS" in heard
    assert "ADAR_DATA_MAKE_SEED" in heard


def test_a_default_that_the_runtime_chooses_is_shown_as_it_chooses_it(
    bundle_folder: Path, tmp_path: Path
) -> None:
    shown = {one.name: one.show_default for one in command_of(("run",)).params}
    of_rules = {name: shown[name].removeprefix("the bundle's, or ") for name in ("patience", "within")}
    assert float(of_rules["within"]) == Converged().tolerance
    assert int(of_rules["patience"]) == Peak().patience
    assert shown["calls"] == shown["tolerance"] == "as measured by the export"
    measured = {"ab2": 17, "adaptive": 23}
    trials = [{"solver": "adaptive", "calls": 23, "tolerance": 0.0625}]
    folder = shutil.copytree(bundle_folder, tmp_path / "bundle")
    edit(folder, lambda m: m["convergence"].update(order=1.0, calls=measured, trials=trials))
    bundle = load(folder)
    assert (bundle.solver("ab2").calls, bundle.solver("adaptive").tolerance) == (17, 0.0625)


def test_train_shows_the_defaults_of_both_kinds_of_training() -> None:
    shown = {one.name: one.show_default for one in command_of(("train",)).params}
    narrow, wide, zero_shot = preset(), preset(wide=True), preset(described=True)
    small = preset(small=True)
    assert shown["epochs"] == (
        f"{narrow.epochs}; {wide.epochs} with many feature columns, {small.epochs} for many small graphs, "
        f"{zero_shot.epochs} for zero-shot"
    )
    assert shown["hidden"].startswith(f"{HIDDEN}, or {SMALL_HIDDEN} for many small graphs")
    assert shown["proxies"].startswith(f"{PROXIES}, ")
    assert shown["proxies"].endswith(f"at least {FEWEST_PROXIES}")
    assert shown["lr"] == f"{narrow.lr}, or {SLOWER['lr']} if the search prefers it"
    assert narrow.lr == wide.lr == zero_shot.lr
    searched = {name for one in [*NARROW, *WIDE, STRONGER] for name in one}
    for name in ("weight_decay", "label_smoothing", "train_steps", "dropout", "input_dropout", "smoothing"):
        assert name in searched
        assert shown[name].startswith("searched"), name
    assert shown["weight_decay"] == f"searched, or {zero_shot.weight_decay:g} for zero-shot"
    assert shown["hidden"].startswith(f"{ModelConfig(1, 2).hidden}, or ")


def test_train_describes_the_presets_with_their_values() -> None:
    text = next(one.help for one in command_of(("train",)).params if one.name == "preset")
    assert f"quick: {TrainConfig().epochs} epochs without a search" in text
    for name in ("transductive", "zero-shot"):
        settings = PRESETS[name]
        assert f"{name}: {settings['epochs']} epochs, learning rate {settings['lr']}" in text


def test_choices_that_need_pytorch_are_those_of_training_and_export() -> None:
    """They are written twice: --help must not import PyTorch."""
    assert [name.value for name in PrecisionName] == list(PRECISIONS)
    assert [name.value for name in Preset] == list(PRESETS)
    text = next(one.help for one in command_of(("train",)).params if one.name == "baseline")
    assert all(name in text for name in BASELINES)
