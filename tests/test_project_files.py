"""Workflows, citation, pre-commit hooks and changelog are valid and agree with the rest of the repository."""

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
VERSION = PROJECT["version"]
LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def parsed(path: Path) -> dict:
    return yaml.safe_load(path.read_text())


def steps(workflow: dict) -> list[dict]:
    return [step for job in workflow["jobs"].values() for step in job.get("steps", [])]


def test_there_are_workflows_for_changes_and_releases() -> None:
    assert [path.name for path in WORKFLOWS] == ["check.yml", "release.yml"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_have_least_permissions_and_pinned_actions(path: Path) -> None:
    workflow = parsed(path)
    assert workflow["permissions"] == {"contents": "read"}
    for job in workflow["jobs"].values():
        assert set(job.get("permissions", {})) <= {"id-token"}
    for step in steps(workflow):
        if "uses" in step:
            assert re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40}", step["uses"]), step
        if step.get("uses", "").startswith("actions/checkout@"):
            assert step["with"]["persist-credentials"] is False
    for line in path.read_text().splitlines():
        if "@" in line and "uses:" in line:
            assert re.search(r"# v\d+\.\d+\.\d+$", line), line


def test_changes_are_checked_on_linux_and_macos() -> None:
    workflow = parsed(ROOT / ".github/workflows/check.yml")
    systems = workflow["jobs"]["check"]["strategy"]["matrix"]["os"]
    assert {name.split("-")[0] for name in systems} == {"ubuntu", "macos"}
    assert {"run": ".ci/run"} in steps(workflow)


def test_a_release_is_checked_and_built_before_it_is_published() -> None:
    jobs = parsed(ROOT / ".github/workflows/release.yml")["jobs"]
    assert jobs["check"]["uses"] == "./.github/workflows/check.yml"
    assert (jobs["build"]["needs"], jobs["publish"]["needs"]) == ("check", "build")
    assert jobs["publish"]["permissions"] == {"id-token": "write"}
    assert jobs["publish"]["steps"][-1]["uses"].startswith("pypa/gh-action-pypi-publish@")


def test_the_citation_names_the_software_and_the_paper() -> None:
    citation = parsed(ROOT / "CITATION.cff")
    assert citation["cff-version"] == "1.2.0"
    assert {"title", "authors", "message"} <= set(citation)
    assert citation["version"] == VERSION
    (paper,) = citation["references"]
    assert paper["type"] == "conference-paper"
    assert {"title", "authors", "year"} <= set(paper)


def test_pre_commit_runs_the_steps_of_make_check() -> None:
    (repository,) = parsed(ROOT / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local"
    hooks = {hook["entry"].removeprefix(".venv/bin/") for hook in repository["hooks"]}
    rule = re.search(r"^check:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert rule is not None
    assert hooks == {line.strip().removeprefix("$(BIN)/").removesuffix(" .") for line in rule[1].splitlines()}


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/ISSUE_TEMPLATE").glob("*.yml")), ids=lambda p: p.stem
)
def test_issue_forms_are_valid(path: Path) -> None:
    form = parsed(path)
    if path.stem == "config":
        assert set(form) <= {"blank_issues_enabled", "contact_links"}
        return
    assert {"name", "description", "body"} <= set(form)
    assert all(set(item) <= {"type", "id", "attributes", "validations"} for item in form["body"])


def test_the_changelog_has_a_section_for_the_version() -> None:
    headings = re.findall(
        r"^## \[(.+?)\](?: - \d{4}-\d{2}-\d{2})?$", (ROOT / "CHANGELOG.md").read_text(), re.M
    )
    assert headings[0] == "Unreleased"
    assert VERSION in headings


@pytest.mark.skipif(shutil.which("make") is None, reason="needs make")
def test_the_demo_installs_what_it_needs_and_the_tests_everything() -> None:
    def commands(target: str) -> str:
        options = ["--dry-run", "--always-make", "--no-print-directory", "-C", str(ROOT), target]
        return subprocess.run(["make", *options], check=True, capture_output=True, text=True).stdout

    assert "'.[export]'" in commands("demo")
    assert "'.[dev]'" not in commands("demo")
    assert "'.[dev]'" in commands("test")
    assert "--require-hashes -r requirements/build.txt -r requirements/export.txt" in commands("demo")
    assert "--require-hashes -r requirements/dev.txt" in commands("test")


def requirements(*extras: str) -> list[Requirement]:
    """The requirements of these extras, or of all, without the project itself."""
    optional = PROJECT["optional-dependencies"]
    lines = PROJECT["dependencies"] + [line for extra in extras or optional for line in optional[extra]]
    return [Requirement(line) for line in lines if not line.startswith(PROJECT["name"])]


def pins(path: Path) -> dict[str, str]:
    """Versions by package, in constraints.txt or in a lock file."""
    found = re.findall(r"^([\w.-]+)==([^\s\\]+)", path.read_text(), re.MULTILINE)
    return {canonicalize_name(name): version for name, version in found}


def test_every_requirement_has_an_upper_bound() -> None:
    build = map(Requirement, PYPROJECT["build-system"]["requires"])
    for requirement in [*requirements(), *build]:
        operators = {one.operator for one in requirement.specifier}
        assert operators == {">=", "<"}, requirement


def test_the_tested_versions_are_allowed() -> None:
    tested = pins(ROOT / "constraints.txt")
    for requirement in requirements():
        name = canonicalize_name(requirement.name)
        if name == "tensorrt":  # needs a GPU: no version was tested
            continue
        assert requirement.specifier.contains(Version(tested[name])), requirement


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.stem)
def test_lock_files_contain_versions_and_hashes_and_nothing_else(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# Made by `make lock`")
    entry = r"[a-z0-9-]+==\S+(?: \\\n    --hash=sha256:[0-9a-f]{64})+\n"
    assert re.fullmatch(rf"#.*\n(?:{entry})+", text), "no address, path, option or package without a hash"
    tested = pins(ROOT / "constraints.txt")
    assert {name: tested.get(name) for name in pins(path)} == pins(path)
    assert "torch" not in pins(path)


def test_lock_files_contain_every_requirement() -> None:
    assert {path.stem for path in LOCKS} == {
        "build",
        "cuda",
        "dev",
        "export",
        "onnxruntime",
        "onnxruntime-gpu",
        "runtime",
    }
    elsewhere = {"torch", "onnxruntime", "onnxruntime-gpu"}
    extras = {
        "runtime": ["gpu", "serve"],
        "export": ["plot", "train", "export", "gpu"],
        "dev": [
            "convert",
            "docs",
            "dev",
            "gpu",
            "hub",
            "openvino",
            "parquet",
            "scale",
            "serve",
            "serve-ray",
            "sign",
            "text",
        ],
    }
    for lock, names in extras.items():
        needed = {canonicalize_name(one.name) for one in requirements(*names)} - elsewhere
        assert needed <= set(pins(ROOT / f"requirements/{lock}.txt")), lock


def test_the_source_archive_contains_the_policies_the_fuzzers_and_the_lock_files() -> None:
    sdist = pytest.importorskip("hatchling.builders.sdist", reason="make install installs hatchling")
    names = {file.distribution_path for file in sdist.SdistBuilder(str(ROOT)).recurse_included_files()}
    assert {"SECURITY.md", "fuzz/readers.py", "requirements/dev.txt", "tests/test_project_files.py"} <= names
    assert {"LICENSE", "constraints.txt", "Makefile", "runtime/adar_runtime/files.py"} <= names
    assert not any(name.startswith((".venv", "build/", ".git/")) for name in names)
