"""Describe a deliberate break of a promise."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Break:
    """A change of one line of the product that breaks a promise.

    :param promise: the number of the promise.
    :param lost: the effect of the break, in one sentence.
    :param line: a text that occurs once in the module, on one line.
    :param broken: the text that replaces it.
    :param tests: the tests that must fail, as pytest names them, without their parameters.
    :param needs_servers: whether the tests notice the break only on MariaDB.
    """

    name: str
    promise: int
    lost: str
    module: str
    line: str
    broken: str
    tests: tuple[str, ...]
    needs_servers: bool = False
