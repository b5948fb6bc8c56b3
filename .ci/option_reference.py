"""Write the reference of the options in moorage.conf from their declarations, when the site is built."""

import re
from collections.abc import Iterator

from oslo_config import cfg

from moorage.config import options
from scheduler.plugins import loading

_INTRODUCTION = """
All of Moorage's own options in `moorage.conf`, with their defaults and limits. The file is the one that `--config-file`
names, else the one in `MOORAGE_CONFIG`, else `/etc/moorage/moorage.conf`. For the options of libraries (`transport_url`
and `[oslo_messaging_rabbit]`, logging, CORS, policy), see `etc/moorage/moorage.conf.sample`, which has all options.

An unknown option is refused, with its file and section. [The policy of a scheduler](policy.md) lists the options that a
scheduler reloads without a restart.
""".strip()


def page() -> str:
    """Return the page: a section for each group, and one for each of its options."""
    groups: dict[str, list[cfg.Opt]] = {}
    for group, listed in [*options.list_opts(), *loading.list_opts()]:
        groups.setdefault(group, []).extend(listed)
    parts = ["# Configuration reference", _INTRODUCTION]
    for group in sorted(groups):
        parts.append(f"## [{group}] {{#{group.lower()}}}")
        parts += [part for option in groups[group] for part in _option(group, option)]
    return "\n\n".join(parts)


def _option(group: str, option: cfg.Opt) -> Iterator[str]:
    yield f"### {option.name} {{#{group.lower()}.{option.name}}}"
    yield "· ".join(f"{word} " for word in [f"`[{group}] {option.name}`", *_facts(option)]).strip()
    yield _escaped(option.help or "")


def _facts(option: cfg.Opt) -> Iterator[str]:
    default = option.sample_default if option.sample_default is not None else option.default
    if isinstance(default, list):
        default = ",".join(map(str, default))
    yield str(option.type.type_name if hasattr(option.type, "type_name") else option.type)
    yield f"default `{default}`" if default not in (None, "") else "no default"
    least, most = getattr(option.type, "min", None), getattr(option.type, "max", None)
    if least is not None:
        yield f"at least {least:g}"
    if most is not None:
        yield f"at most {most:g}"
    if choices := getattr(option.type, "choices", None):
        yield "one of " + ", ".join(f"`{choice}`" for choice in choices)
    if option.secret:
        yield "secret"


def _escaped(text: str) -> str:
    """Return a help text as Markdown with all special characters escaped."""
    return re.sub(r"([\\`*_<>\[\]])", r"\\\1", text)
