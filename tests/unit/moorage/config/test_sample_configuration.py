"""Test that the sample configuration shows the defaults of all options, including those of libraries."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from oslo_config import cfg
from oslo_policy import opts as oslo_policy_opts

from moorage.config import options
from placement_store.http import application
from scheduler.plugins import loading

SAMPLE = Path(__file__).parents[4] / "etc/moorage/moorage.conf.sample"
#: Options that depend on the machine: the sample shows placeholders.
OF_THE_MACHINE = {"[compute] agent", "[oslo_messaging_rabbit] hostname", "[oslo_messaging_rabbit] processname"}


def everything(*files: Path) -> cfg.ConfigOpts:
    """The configuration with every option that any service or plug-in registers."""
    conf = options.new(files=files)
    application.register_options(conf)
    for group, of_policy in oslo_policy_opts.list_opts():
        conf.register_opts(of_policy, group=group)
    for group, of_plugins in loading.list_opts():
        conf.register_opts(of_plugins, group=group)
    return conf


def values(conf: cfg.ConfigOpts) -> Iterator[tuple[str, Any]]:
    for name in conf:
        value = conf[name]
        if isinstance(value, cfg.ConfigOpts.GroupAttr):
            # For an option that may be repeated, the sample shows one empty value where there is none.
            yield from ((f"[{name}] {option}", [] if value[option] == [""] else value[option]) for option in value)
        else:
            yield f"[DEFAULT] {name}", value


def test_the_sample_with_every_option_set_changes_nothing(tmp_path: Path) -> None:
    all_set = tmp_path / "moorage.conf"
    lines = [re.sub(r"^#(?=[\w-]+ =)", "", line) for line in SAMPLE.read_text().splitlines()]
    all_set.write_text("\n".join(line for line in lines if not line.endswith("= <None>")))
    shown, real = dict(values(everything(all_set))), dict(values(everything()))

    assert len([line for line in lines if re.match(r"[\w-]+ =", line)]) > 200
    files = {"[DEFAULT] config_file", "[DEFAULT] config_source", "[DEFAULT] config_dir"}
    assert {
        name: (shown[name], real[name]) for name in real.keys() - files - OF_THE_MACHINE if shown[name] != real[name]
    } == {}


def test_the_sample_contains_each_of_our_options() -> None:
    text = SAMPLE.read_text()
    for group, of_group in [*options.list_opts(), *loading.list_opts()]:
        section = re.search(rf"^\[{group}\]$(.*?)(?=^\[|\Z)", text, re.MULTILINE | re.DOTALL)
        assert section is not None, group
        for option in of_group:
            assert re.search(rf"^#{option.name} =", section[1], re.MULTILINE), (group, option.name)
