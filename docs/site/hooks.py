"""Hooks of mkdocs: add pages from outside docs/, and adapt links.

Pages come from four places: docs/, documents elsewhere in the repository, examples, and the help of the
commands. Links in the documents point to files of the repository; a hook turns them into links of the site.
"""

import ast
import json
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from docs.site.commands import command_pages

ROOT = Path(__file__).parents[2]
DOCS = "docs"
ELSEWHERE = {
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "CODE_OF_CONDUCT.md": "code_of_conduct.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
    "Dockerfile": "Dockerfile",
    "LICENSE": "LICENSE",
}
LINK = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")


def brought_in() -> dict[str, str]:
    """Files of the repository outside docs/ that become pages, and their paths in the site."""
    found = {name: page for name, page in ELSEWHERE.items() if (ROOT / name).is_file()}
    for folder in ("benchmarks", "examples"):
        for path in sorted((ROOT / folder).glob("*.md")):
            name = "index.md" if path.stem == "README" else path.name
            found[f"{folder}/{path.name}"] = f"{folder}/{name}"
    for path in sorted(path for path in (ROOT / "examples").iterdir() if path.suffix in PAGES):
        found[f"examples/{path.name}"] = f"examples/{path.stem}.md"
    return found


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Fill in the generated parts of the navigation."""
    pages = brought_in()
    found: dict[str, list[Any]] = {
        "commands": sorted(command_pages(), key=lambda page: page.removesuffix(".md")),
        "examples": [
            page if page.endswith("index.md") else {Path(source).name: page}
            for source, page in pages.items()
            if source.startswith("examples/")
        ],
        "benchmarks": [page for page in pages.values() if page.startswith("benchmarks/")],
    }
    nav: list[dict[str, Any]] = config.nav or []
    for entry in nav:
        for title, content in entry.items():
            if isinstance(content, str) and content in found:
                entry[title] = found[content]
    listed = set(_leaves(nav))
    guides = next(entry["Guides"] for entry in nav if "Guides" in entry)
    guides += [path.name for path in sorted((ROOT / DOCS).glob("*.md")) if path.name not in listed]
    config.watch += [str(ROOT / folder) for folder in ("adar_deploy", "benchmarks", "examples", "README.md")]
    return config


def _leaves(nav: Any) -> list[str]:
    if isinstance(nav, str):
        return [nav]
    entries = nav.values() if isinstance(nav, dict) else nav
    return [leaf for entry in entries for leaf in _leaves(entry)]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are not in docs/."""
    for source, page in brought_in().items():
        text = (ROOT / source).read_text()
        content = PAGES.get(Path(source).suffix, lambda text, _: text)(text, source)
        files.append(File.generated(config, page, content=content))
    for page, content in command_pages().items():
        files.append(File.generated(config, page, content=content))
    for picture in sorted((ROOT / "benchmarks" / "pictures").glob("*.png")):
        uri = f"benchmarks/pictures/{picture.name}"
        files.append(File.generated(config, uri, abs_src_path=str(picture)))
    return files


def _example(code: str, source: str) -> str:
    """The page of an example: its docstring, then its code."""
    title, _, rest = (ast.get_docstring(ast.parse(code)) or source).partition("\n")
    return f"# {title.rstrip('.')}\n\n{rest.strip()}\n\n`{source}`:\n\n```python\n{code}```\n"


def _notebook(text: str, source: str) -> str:
    """The page of a notebook: its cells in order."""
    cells = [
        (cell["cell_type"], "".join(cell["source"])) for cell in json.loads(text)["cells"]
    ]  # text or lines
    parts = [f"```python\n{content}\n```" if kind == "code" else content for kind, content in cells]
    return "\n\n".join([parts[0], f"`{source}`:", *parts[1:]]) + "\n"


PAGES = {".py": _example, ".ipynb": _notebook}
"""Suffix of an example -> function that makes its page."""


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Turn links to files of the repository into links of the site."""
    here = page.file.src_uri
    pages = brought_in()
    source = next((source for source, made in pages.items() if made == here), f"{DOCS}/{here}")

    def to_site(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        if target.startswith(f"{DOCS}/"):
            found = target.removeprefix(f"{DOCS}/")
        elif target in pages:
            found = pages[target]
        else:
            return match[0]
        return posixpath.relpath(found, posixpath.dirname(here) or ".") + (match[2] or "")

    return LINK.sub(to_site, markdown)
