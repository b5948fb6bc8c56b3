"""Manual pages of all commands, made from their parsers: the text of `--help`, for `man`."""

import argparse
import re
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moorage import errors
from moorage.cli.help import first_line

if TYPE_CHECKING:
    from moorage.cli.shell import Shell

#: The width of usage and options; `man` does not wrap them.
_COLUMNS = 78


def write(app: "Shell", directory: Path) -> list[Path]:
    """Write a page of section 1 for the program and for each of its commands; return the files.

    :raises ConfigurationError: the directory cannot be written to.
    """
    written = []
    try:
        directory.mkdir(parents=True, exist_ok=True)
        for name, text in pages(app):
            file = directory / f"{name}.1"
            file.write_text(text, encoding="utf-8")
            written.append(file)
    except OSError as fault:
        raise errors.ConfigurationError(reason=f"{directory} cannot be written: {fault}") from fault
    return written


def pages(app: "Shell") -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each page."""
    commands = {name: _command(app, name) for name, _ in app.command_manager}
    lines = [
        f".TP\n.BR {_page(app, name)} (1)\n{_text(first_line(type(command)))}" for name, command in commands.items()
    ]
    about = "Every command reads one configuration file, /etc/moorage/moorage.conf by default."
    further = "\n".join([".SH COMMANDS", *lines])
    yield app.NAME, _rendered(app, app.NAME, "a scheduler-plus-claims service for clouds", app.parser, about, further)
    for name, command in commands.items():
        parser = command.get_parser(f"{app.NAME} {name}")
        first, _, rest = str(type(command).__doc__ or "").strip().partition("\n")
        about = re.sub(r"\n +", "\n", rest.strip()) or first
        further = f".SH SEE ALSO\n.BR {app.NAME} (1)"
        yield _page(app, name), _rendered(app, _page(app, name), first_line(type(command)), parser, about, further)


def _rendered(app: "Shell", page: str, summary: str, parser: argparse.ArgumentParser, about: str, further: str) -> str:
    def wide(prog: str) -> argparse.HelpFormatter:
        return argparse.HelpFormatter(prog, width=_COLUMNS)

    parser.formatter_class = wide
    parser.description = parser.epilog = None
    usage, _, options = parser.format_help().partition("\n\n")
    return "\n".join(
        [
            f'.TH "{page.upper()}" "1" "" "Moorage {metadata.version(app.NAME)}" "Moorage"',
            f".SH NAME\n{page} \\- {_text(summary)}",
            f".SH SYNOPSIS\n.nf\n{_text(usage.removeprefix('usage: '))}\n.fi",
            ".SH DESCRIPTION",
            *(f".PP\n{_text(' '.join(part.split()))}" for part in about.split("\n\n")),
            f".SH OPTIONS\n.nf\n{_text(options.rstrip())}\n.fi",
            further,
            "",
        ]
    )


def _command(app: "Shell", name: str) -> Any:
    return app.command_manager.commands[name].load()(app, None, name)


def _page(app: "Shell", name: str) -> str:
    return "-".join([app.NAME, *name.split()])


def _text(text: str) -> str:
    """Escape a text, so that nothing in it is a request of roff or a typographic hyphen."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("`", "\\(ga")
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in escaped.splitlines())
