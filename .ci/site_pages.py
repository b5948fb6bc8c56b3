"""Write the pages of the site that have no file: commands, messages, options, classes, HTTP, release notes."""

import json
import re
import sys
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.utils import get_relative_url
from reno.config import Config
from reno.loader import Loader

from moorage.cli.shell import Shell

sys.path.insert(0, str(Path(__file__).parent))
import api_reference
import option_reference
import rpc_reference

ROOT = Path(__file__).parents[1]
_SECTIONS = {"features": "New", "upgrade": "When upgrading", "deprecations": "Deprecated"}
_SECTIONS |= {"security": "Security", "fixes": "Fixed"}


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that have no file."""
    pages = {"commands.md": commands(), "messages.md": rpc_reference.page(), "release-notes.md": release_notes()}
    pages |= {"configuration.md": option_reference.page(), "http.md": http_operations()} | api_reference.pages()
    for name, page in pages.items():
        files.append(File.generated(config, name, content=page))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Replace links to files of the check-out that the site does not have by the names of these files."""
    folder = (ROOT / "docs" / page.file.src_uri).parent
    return re.sub(r"\[([^]]+)\]\(((?:\.\./)+[^)#]+)(?:#[^)]*)?\)", lambda link: _in_site(link, folder), markdown)


def on_post_page(output: str, *, page: Any, **_: object) -> str:
    """Load Mermaid from the site itself on pages with a diagram; otherwise the theme fetches it from elsewhere."""
    if 'class="mermaid"' not in output:
        return output
    script = get_relative_url("javascripts/mermaid.min.js", page.url)
    return output.replace("</head>", f'<script src="{script}"></script></head>', 1)


def http_operations() -> str:
    """Return a page with every operation of the placement API, from the API's own description."""
    described = json.loads((ROOT / "docs" / "placement-api.openapi.json").read_text())
    parts = [
        "# HTTP: every operation of the placement API",
        (
            "Placement's HTTP API as `moorage placement-api` serves it, microversions 1.0 to 1.39. [Placement's HTTP "
            "API](placement-api.md) describes how to run it, and the differences from Placement. For tools, there is "
            "an [OpenAPI](placement-api.openapi.json) description with all parameters, the bodies of requests, and the "
            "form of errors."
        ),
        "\n".join(["| method | path | what it does | |", "|---|---|---|---|", *_operations(described["paths"])]),
    ]
    return "\n\n".join(parts)


def _operations(paths: dict[str, Any]) -> Iterator[str]:
    for path, methods in paths.items():
        for method, operation in methods.items():
            yield f"| {method.upper()} | `{path}` | {operation['summary']} | {operation['description']} |"


def commands() -> str:
    """Return a page with the help of every command, as `moorage help` gives it."""
    shell = Shell()
    parts = ["# Every command", "What `moorage help COMMAND` says. Options that stand before the command:", ""]
    parts.append(_block(shell.parser.format_help()))
    for point in sorted(metadata.entry_points(group="moorage.cli"), key=lambda point: point.name.replace("_", " ")):
        name = point.name.replace("_", " ")
        parser = point.load()(shell, None, cmd_name=name).get_parser(f"moorage {name}")
        parts += [f"## `moorage {name}`", _block(parser.format_help())]
    return "\n\n".join(parts)


def release_notes() -> str:
    """Return a page with all release notes, the newest version first."""
    parts = ["# Release notes"]
    with Loader(Config(str(ROOT))) as loader:
        for version in loader.versions:
            parts.append(f"## {'Not yet released' if version.endswith('0.0') else version}")
            notes = [loader.parse_note_file(name, sha) for name, sha in loader[version]]
            for section, title in _SECTIONS.items():
                if entries := [entry for note in notes for entry in note.get(section, [])]:
                    parts += [f"### {title}", "\n".join(f"- {_indented(entry)}" for entry in entries)]
    return "\n\n".join(parts)


def _in_site(link: re.Match[str], folder: Path) -> str:
    """Return a link unchanged if it leads to a page of the site, else its text and the path in the check-out."""
    target = (folder / link[2]).resolve()
    if target.is_relative_to(ROOT / "docs") and target.suffix == ".md":
        return link[0]
    return f"{link[1]} (`{target.relative_to(ROOT)}`)"


def _block(text: str) -> str:
    return f"```text\n{text.rstrip()}\n```"


def _indented(entry: str) -> str:
    return entry.strip().replace("\n", "\n  ")
