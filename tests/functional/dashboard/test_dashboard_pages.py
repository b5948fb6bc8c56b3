"""Test that the files of the page are public and complete, and load nothing from other servers."""

import gzip
import re
from pathlib import Path

import pytest
from support.dashboard import ADMIN, Viewer

STATIC = Path(__file__).parents[3] / "dashboard" / "static"
FILES = sorted(path.relative_to(STATIC).as_posix() for path in STATIC.rglob("*") if path.is_file())
OUR_TEXTS = [name for name in FILES if not name.startswith("vendor/")]


@pytest.mark.parametrize("name", FILES)
def test_each_file_is_served_without_a_token(viewer: Viewer, name: str) -> None:
    answer = viewer.ask(f"/{name}", headers={})

    assert answer.status_code == 200
    assert answer.content == (STATIC / name).read_bytes()
    packed = viewer.ask(f"/{name}", headers={"Accept-Encoding": "gzip"})
    assert gzip.decompress(packed.content) == answer.content
    again = viewer.ask(f"/{name}", headers={"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")


@pytest.mark.parametrize("path", ["/main.js", "/api/hosts"])
def test_an_answer_is_compressed_only_for_a_client_that_accepts_gzip(
    viewer: Viewer, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboard.api._COMPRESSED_FROM", 1)

    def is_compressed(accepted: str) -> bool:
        answer = viewer.ask(path, headers={"Accept-Encoding": accepted, **ADMIN})
        return bool(answer.headers.get("Content-Encoding") == "gzip")

    for accepted in ("gzip", "br, GZIP ;q=0.001", "identity;q=0.5, gzip;q=1"):
        assert is_compressed(accepted), accepted
    for accepted in ("", "br", "gzip;q=0", "br, gzip; q=0.000, *;q=0.5", "identity"):
        assert not is_compressed(accepted), accepted


def test_the_root_is_the_page(viewer: Viewer) -> None:
    answer = viewer.ask("/", headers={})
    assert answer.content == (STATIC / "index.html").read_bytes()
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", ["/", "/main.js", "/api/hosts", "/nothing"])
def test_each_answer_forbids_scripts_and_data_of_other_servers(viewer: Viewer, path: str) -> None:
    answer = viewer.ask(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))

    assert (policy["default-src"], policy["script-src"], policy["connect-src"]) == ("'none'", "'self'", "'self'")
    assert policy["frame-ancestors"] == "'none'"
    assert "unsafe" not in answer.headers["Content-Security-Policy"]
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/../access.py", "/vendor/../../api.py", "/%2e%2e/access.py", "/vendor", "/py.typed"])
def test_nothing_else_is_served(viewer: Viewer, path: str) -> None:
    assert viewer.ask(path, headers={}).status_code == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_a_file_can_only_be_read(viewer: Viewer, method: str) -> None:
    assert viewer.ask("/main.js", method).status_code == 405


@pytest.mark.parametrize("name", OUR_TEXTS)
def test_our_files_refer_only_to_existing_files(name: str) -> None:
    text = (STATIC / name).read_text()
    named = re.findall(r'from "\./([^"]+)"', text) + re.findall(r'(?:src|href)="([^#"]+)"', text)

    assert set(named) <= set(FILES)
    addresses = set(re.findall(r"https?://[^\s\"')]+", text)) - {"http://www.w3.org/2000/svg"}
    assert not addresses


@pytest.mark.parametrize("name", OUR_TEXTS)
def test_no_script_interprets_text_of_the_cloud_as_markup(name: str) -> None:
    text = (STATIC / name).read_text()
    for dangerous in ("innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function"):
        assert dangerous not in text


def test_the_markup_of_the_page_has_no_inline_script_or_style() -> None:
    text = (STATIC / "index.html").read_text()
    assert all(body == "" for body in re.findall(r"<script[^>]*>(.*?)</script>", text, re.DOTALL))
    assert not re.search(r"<style|\sstyle=|\son\w+=", text)


def test_the_chart_library_comes_with_its_licence() -> None:
    assert "MIT License" in (STATIC / "vendor" / "uPlot.LICENSE").read_text()
    assert "v1.6.32" in (STATIC / "vendor" / "uPlot.iife.min.js").read_text()[:100]
