"""Formatting of host counts by reason as one line of text of bounded length."""

from collections.abc import Sequence
from typing import NamedTuple

#: The most characters of a name and of a reason in a line.
_LONGEST_NAME, _LONGEST_REASON = 40, 90
#: The singular start of a reason, which follows a host's name, and its plural, which follows a number of hosts.
_OF_MANY = {"is ": "", "has ": "have ", "was ": "were ", "does ": "do "}


class Part(NamedTuple):
    """A number of hosts and their common reason."""

    hosts: int
    words: str


def shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a text on one line, truncated if it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def of_many(reason: str) -> str:
    """Convert a reason that follows the name of a host to one that follows a number of hosts."""
    reason = shortened(reason, _LONGEST_REASON)
    for singular, plural in _OF_MANY.items():
        if reason.startswith(singular):
            return plural + reason.removeprefix(singular)
    return reason


def joined(head: str, parts: Sequence[Part], besides: Sequence[str], longest: int) -> str:
    """Return a line of ``head``, the parts with most hosts first, and further texts as far as there is room.

    Parts without room are replaced by their sum, so that the numbers of hosts still add up.

    :param longest: the most characters of the line; ``head`` and the shortest ending always have room.
    """
    parts = _merged(parts)
    texts: list[str] = []
    for number, part in enumerate(parts):
        words = f"{part.hosts:,} {part.words}"
        rest = parts[number + 1 :]
        if len(_line(head, [*texts, words, *_counted(rest)])) > longest:
            # A later part may be shorter and fit, but would break the order of the largest first.
            texts.extend(_counted(parts[number:]))
            break
        texts.append(words)
    for words in besides:
        if len(_line(head, [*texts, words])) <= longest:
            texts.append(words)
    return _line(head, texts)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Merge parts with the same words; sort them by hosts, most first, and then in the order of the filters."""
    hosts: dict[str, int] = {}
    for part in parts:
        if part.hosts > 0:
            hosts[part.words] = hosts.get(part.words, 0) + part.hosts
    return sorted((Part(number, words) for words, number in hosts.items()), key=lambda part: -part.hosts)


def _counted(parts: Sequence[Part]) -> list[str]:
    if not parts:
        return []
    reasons = "1 other reason" if len(parts) == 1 else f"{len(parts):,} other reasons"
    return [f"{sum(part.hosts for part in parts):,} for {reasons}"]


def _line(head: str, texts: Sequence[str]) -> str:
    return f"{head}: {'; '.join(texts)}" if texts else head
