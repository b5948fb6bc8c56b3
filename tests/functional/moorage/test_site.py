"""Test that the documentation is built as a site, and that its search finds the section about a symptom."""

import json
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import lunr
import lunr.builder
import pytest
import yaml
from mkdocs.commands.build import build
from mkdocs.config import load_config

from moorage import errors
from moorage.config import options

REPOSITORY = Path(__file__).parents[3]
Search = Callable[[str], list[str]]


class Ids(HTMLParser):
    """Collects the anchors of a page, and the files that it loads."""

    def __init__(self) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.loaded: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.ids.add(values.get("id") or "")
        if tag in ("script", "img") or (tag == "link" and values.get("rel") == "stylesheet"):
            self.loaded.append(values.get("src") or values.get("href") or "")


def read(page: Path) -> Ids:
    found = Ids()
    found.feed(page.read_text())
    return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built with warnings as errors."""
    folder = tmp_path_factory.mktemp("site")
    build(load_config(str(REPOSITORY / "mkdocs.yml"), site_dir=str(folder)))
    return folder


@pytest.fixture(scope="module")
def search(site: Path) -> Search:
    """Search with the documents, words and weights of the theme."""
    index = json.loads((site / "search/search_index.json").read_text())
    separator = re.compile(index["config"]["separator"])
    weights = {name: field["boost"] for name, field in index["config"]["fields"].items()}

    def words(text: str) -> str:
        # The library separates words at blanks and hyphens; in the browser, a hyphen does not separate words.
        return separator.sub(" ", re.sub(r"<[^>]+>", " ", text)).replace("-", "_")

    documents = [
        {"location": one["location"], "title": words(one["title"]), "text": words(one["text"])} for one in index["docs"]
    ]
    fields = [{"field_name": name, "boost": weights[name]} for name in ("title", "text")]
    found = lunr.lunr(ref="location", fields=fields, documents=documents)
    # Operators in the text of a reader are removed.
    return lambda text: [
        hit["ref"] for hit in found.search(re.sub(r"[+~^]", " ", " ".join(f"+{one}" for one in words(text).split())))
    ]


@pytest.mark.parametrize(
    ("typed", "found"),
    [
        ("NoValidHost", "operator/runbook/#no-valid-host"),
        ("no valid host was found", "operator/runbook/#no-valid-host"),
        ("StoreUnavailable", "operator/runbook/#database-away"),
        ("ClaimContention", "operator/runbook/#claim-conflicts"),
        ("MaxRetriesExceeded", "operator/runbook/#builds-fail"),
        ("SlowPlugin", "operator/runbook/#plugin-broken"),
        ("SchemaTooNew", "operator/runbook/#version-refused"),
        ("ConfigurationError", "operator/runbook/#configuration-wrong"),
        ("host is down", "operator/runbook/#host-down"),
        ("disk is full", "operator/runbook/#disk-full"),
        ("alarm of the broker", "operator/runbook/#broker-alarm"),
        ("lock_wait_timeout", "configuration/#database.lock_wait_timeout"),
        ("free", "api/hosts/#hostview.free"),
        ("select_destinations", "messages/#select_destinations"),
        ("Nova", "migrating-from-nova/"),
        ("upgrade", "upgrading/"),
    ],
)
def test_a_search_finds_the_section_among_the_first_five(search: Search, typed: str, found: str) -> None:
    assert found in search(typed)[:5]


def test_the_url_of_each_alert_is_a_section_of_the_built_runbook(site: Path) -> None:
    groups = yaml.safe_load((REPOSITORY / "etc/prometheus/moorage.rules.yml").read_text())["groups"]
    ids = read(site / "operator/runbook/index.html").ids
    for rule in (rule for group in groups for rule in group["rules"]):
        page, _, section = rule["annotations"]["runbook_url"].partition("#")
        assert page == "docs/operator/runbook.md"
        assert section in ids, rule["alert"]


def test_a_search_for_an_errors_code_or_name_finds_a_page(search: Search) -> None:
    ours = [kind for kind in errors.every_error() if kind.__module__ == errors.__name__]
    for kind in ours:
        for typed in (kind.code, kind.__name__):
            assert any(hit.startswith(("operator/errors/", "operator/runbook/")) for hit in search(typed)), typed


def test_each_option_has_a_section(site: Path) -> None:
    ids = read(site / "configuration/index.html").ids
    wanted = {f"{group.lower()}.{option.name}" for group, listed in options.list_opts() for option in listed}
    assert len(wanted) > 80
    assert wanted <= ids


def test_pages_load_nothing_from_other_servers_and_diagrams_have_their_script(site: Path) -> None:
    diagrams = 0
    for page in site.rglob("*.html"):
        loaded = read(page).loaded
        assert not [address for address in loaded if "//" in address], page
        if 'class="mermaid"' in page.read_text():
            diagrams += 1
            [script] = [address for address in loaded if "mermaid" in address]
            assert (page.parent / script).stat().st_size > 1_000_000
    assert diagrams
