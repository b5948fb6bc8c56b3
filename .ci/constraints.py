"""Write etc/constraints.txt: the version of each package that Moorage needs, as it is installed here and so was tested.

python .ci/constraints.py            # print
python .ci/constraints.py write
"""

import sys
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

FILE = Path(__file__).parent.parent / "etc/constraints.txt"
#: The extras for people who run Moorage; the other extras are for its tests.
_EXTRAS = ("keystone", "servers", "bench", "simulation", "tracing")
#: The oldest Python that Moorage runs on. What only a newer one needs is not listed, so the file is the same on each.
_PYTHON = {"python_version": "3.11", "python_full_version": "3.11.0"}
_HEAD = """\
# What Moorage has been tested with: pip install -c etc/constraints.txt .
# Made by .ci/constraints.py from the environment of the tests.
"""


def closure() -> dict[str, str]:
    """Return the version of each distribution that Moorage and its optional parts need, by canonical name."""
    found: dict[str, str] = {}
    pending = [("moorage", extra) for extra in ("", *_EXTRAS)]
    seen = set(pending)
    while pending:
        name, extra = pending.pop()
        for text in metadata.requires(name) or ():
            needed = Requirement(text)
            if needed.marker is not None and not needed.marker.evaluate({"extra": extra, **_PYTHON}):
                continue
            key = canonicalize_name(needed.name)
            found[key] = metadata.version(key)
            for wanted in ("", *needed.extras):
                if (key, wanted) not in seen:
                    seen.add((key, wanted))
                    pending.append((key, wanted))
    return found


def text() -> str:
    """Return the content of the file."""
    return _HEAD + "".join(f"{name}=={version}\n" for name, version in sorted(closure().items()))


if __name__ == "__main__":
    if sys.argv[1:] == ["write"]:
        FILE.write_text(text(), encoding="utf-8")
    else:
        sys.stdout.write(text())
