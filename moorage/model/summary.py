"""How a count of hosts by reason becomes one line for people, of whatever size the cloud is."""

from collections.abc import Sequence
from typing import NamedTuple

#: A name or a reason takes up no more of a line than this, in characters.
_LONGEST_NAME, _LONGEST_REASON = 40, 90
#: What a reason begins with, which follows the name of one host, and what it becomes after a number of hosts.
_OF_MANY = {"is ": "", "has ": "have ", "was ": "were ", "does ": "do "}


class Part(NamedTuple):
    """So many hosts, and what is the matter with them."""

    hosts: int
    words: str


def shortened(text: str, longest: int = _LONGEST_NAME) -> str:
    """Return a text on one line, cut off where it is too long."""
    text = " ".join(text.split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def of_many(reason: str) -> str:
    """Return a reason that follows the name of a host as one that follows a number of hosts."""
    reason = shortened(reason, _LONGEST_REASON)
    for singular, plural in _OF_MANY.items():
        if reason.startswith(singular):
            return plural + reason.removeprefix(singular)
    return reason


def joined(head: str, parts: Sequence[Part], besides: Sequence[str], longest: int) -> str:
    """Return a line that begins with ``head`` and names the parts, most hosts first, and what else is to be said.

    What has no room is counted together, so that the numbers of hosts still add up.

    :param longest: how many characters the line may have; ``head`` and the shortest end of it always have room.
    """
    parts = _merged(parts)
    said: list[str] = []
    for number, part in enumerate(parts):
        words = f"{part.hosts:,} {part.words}"
        rest = parts[number + 1 :]
        if len(_line(head, [*said, words, *_counted(rest)])) > longest:
            # A later one may be shorter, but the largest come first: after a gap the order would say nothing.
            said.extend(_counted(parts[number:]))
            break
        said.append(words)
    for words in besides:
        if len(_line(head, [*said, words])) <= longest:
            said.append(words)
    return _line(head, said)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Return the parts, those of the same words as one, most hosts first; of as many, in the order of the filters."""
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


def _line(head: str, said: Sequence[str]) -> str:
    return f"{head}: {'; '.join(said)}" if said else head
