"""Test that the pages on the code name existing files and folders, and that the index has every decision."""

import re
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DECISIONS = sorted((ROOT / "docs" / "adr").glob("[0-9]*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "docs" / "architecture.md",
    ROOT / "docs" / "recipes.md",
    *DECISIONS,
]
OURS = "moorage|placement_store|scheduler|conductor|compute|dashboard|harness|filters|weighers|tests|docs|etc|\\.ci"
#: A path within one of our folders, maybe with the name of something in the file.
NAMED = re.compile(rf"`((?:{OURS})/[\w./-]*?)(?::\w+)?`")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_path_that_a_page_names_exists(page: Path) -> None:
    missing = [name for name in NAMED.findall(page.read_text()) if not (ROOT / name).exists()]
    assert not missing


@pytest.mark.parametrize("folder", ["contract", "external"])
def test_the_page_for_contributors_names_each_folder_of_tests(folder: str) -> None:
    [row] = re.findall(rf"^\| `tests/{folder}/` \|(.*?)\|", (ROOT / "CONTRIBUTING.md").read_text(), re.MULTILINE)
    found = {path.parent.name for path in (ROOT / "tests" / folder).glob("*/test_*.py")}
    found |= {path.relative_to(ROOT / "tests" / folder).parts[0] for path in ROOT.glob(f"tests/{folder}/*/*/test_*.py")}
    assert set(re.findall(r"`(\w+)/`", row)) == found


def test_the_page_on_the_architecture_describes_each_top_level_package() -> None:
    packages = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["root_packages"]
    page = (ROOT / "docs" / "architecture.md").read_text().partition("## Folders and their layers\n")[2]
    _before, diagram, tables = re.split("```(?:mermaid)?\n", page, maxsplit=2)
    for name in packages:
        assert re.search(rf"\b{name}\b", diagram), name
        assert f"`{name}/`" in tables, name


def test_the_index_has_each_decision_with_its_title_and_status() -> None:
    index = (ROOT / "docs" / "adr" / "README.md").read_text()
    for page in DECISIONS:
        title, _blank, status = page.read_text().splitlines()[:3]
        number, words = title.removeprefix("# ").split(". ", 1)
        state = re.match(r"Status: (\w+) · \d{4}-\d\d-\d\d", status)
        assert state is not None, page.name
        assert f"| [{number}]({page.name}) | {words} | {state[1]} |" in index
