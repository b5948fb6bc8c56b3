"""The lists of enabled plug-ins: full lists of names, or differences from the default."""

from collections.abc import Sequence

from oslo_config import cfg

from moorage import errors
from moorage.config.scheduler import SCHEDULER

_DEFAULTS: dict[str, Sequence[str]] = {
    option.name: tuple(option.default) for option in SCHEDULER if isinstance(option, cfg.ListOpt)
}


def enabled(conf: cfg.ConfigOpts, option: str) -> list[str]:
    """Return the names that a list option of ``[scheduler]`` enables, in their order.

    ``+rack, -ram`` is the default without ``ram`` and with ``rack`` at its end. The existence of the plug-ins is not
    checked here.

    :raises ConfigurationError: names with and without a sign are mixed, a sign or a place has no name, a name to
        remove is not among the defaults, a name to add is, or a name is given twice.
    """
    written: list[str] = conf.scheduler[option]
    signed = [name for name in written if name.startswith(("+", "-"))]
    if not signed and "" not in written:
        return list(written)
    default = _DEFAULTS[option]
    removed, added = ([name[1:].strip() for name in written if name.startswith(sign)] for sign in "-+")
    _check(option, written, signed, removed, added)
    return [*(name for name in default if name not in removed), *added]


def _check(
    option: str, written: Sequence[str], signed: Sequence[str], removed: Sequence[str], added: Sequence[str]
) -> None:
    default = _DEFAULTS[option]
    if "" in written:
        reason = "has two commas without a name between them"
    elif len(signed) < len(written):
        bare = ", ".join(name for name in written if name not in signed)
        reason = f"mixes names with and without a sign ({bare}): write all of them, or only +name and -name"
    elif "" in (*removed, *added):
        reason = "has a sign without a name"
    elif unknown := [name for name in removed if name not in default]:
        reason = f"removes {', '.join(unknown)}, which is not enabled by default: {', '.join(default)}"
    elif twice := [name for name in added if name in default]:
        reason = f"adds {', '.join(twice)}, which is enabled by default"
    elif len({*removed, *added}) < len(written):
        reason = f"names one twice: {', '.join(written)}"
    else:
        return
    raise errors.ConfigurationError(reason=f"[scheduler] {option} {reason}")
