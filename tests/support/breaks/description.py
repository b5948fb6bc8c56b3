"""Describe a deliberate break of a promise."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Break:
    """A change of one line of the product that breaks a promise.

    :param promise: its number.
    :param lost: what is lost, in one sentence.
    :param line: text that is once in the module, on one line.
    :param broken: the text in its place.
    :param tests: those that have to fail, as pytest names them, without their parameters.
    :param needs_servers: whether they only notice it on MariaDB.
    """

    name: str
    promise: int
    lost: str
    module: str
    line: str
    broken: str
    tests: tuple[str, ...]
    needs_servers: bool = False
