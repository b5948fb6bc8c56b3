"""Test that an error of an installed plug-in at load time is reported in one sentence that names the plug-in."""

from pathlib import Path

import pytest
from support.moorage.configuration import from_text
from support.scheduler.installed_packages import Install

from moorage import errors
from moorage.config import options
from scheduler.decide.plugin_failures import FailureCounts
from scheduler.plugins.loading import check_names, load_filters, load_request_filters, load_weighers, numeric_metadata
from scheduler.policy import SchedulingPolicy

_MODULE = """
from oslo_config import cfg

from moorage.plugin import Filter, RequestFilter, Weigher

class Sound(Filter):
    def passes(self, host, request):
        return True

class Exiting(Sound):
    def __init__(self, settings):
        raise SystemExit(3)

class Dividing(Weigher):
    def __init__(self, settings):
        1 // 0

    def weigh(self, host, request):
        return 0.0

class Heavy(Weigher):
    def weigh(self, host, request):
        return 0.0

class WithoutComma(Sound):
    numeric_metadata = ("rack_celsius")

class Sized(Sound):
    options = (cfg.IntOpt("max_bytes", min=0, help="The most bytes of a host."),)

    def __init__(self, settings):
        self.max_bytes = settings["max_bytes"]

class Renamed(Sound):
    options = (
        cfg.IntOpt("rack_most", deprecated_name="rack-limit", default=1, help="The most servers of a rack."),
        cfg.IntOpt("rack_least", deprecated_name="rack_fewest", deprecated_group="weighers", help="Least."),
        cfg.IntOpt("rack_spare", deprecated_name="spare", deprecated_group="racks", default=1, help="The spare ones."),
    )

class Choosy(RequestFilter):
    def __init__(self, settings):
        raise ValueError("racks are out")

    def narrow(self, request, cloud):
        return request
"""


def test_a_plugin_whose_constructor_raises_is_refused_by_name(install: Install) -> None:
    name = "moorage_constructors"
    install(
        name,
        _MODULE,
        filters={"exiting": f"{name}:Exiting"},
        weighers={"dividing": f"{name}:Dividing"},
        request_filters={"choosy": f"{name}:Choosy"},
    )
    with pytest.raises(errors.ConfigurationError, match="the filter exiting: SystemExit: 3"):
        load_filters(options.new(), ["exiting"])
    with pytest.raises(errors.ConfigurationError, match="the weigher dividing: ZeroDivisionError"):
        load_weighers(options.new(), ["dividing"])
    with pytest.raises(errors.ConfigurationError, match="the request filter choosy: racks are out"):
        load_request_filters(options.new(), ["choosy"])


def test_a_plugin_with_a_text_instead_of_a_list_of_metadata_keys_is_refused(install: Install) -> None:
    name = "moorage_commas"
    install(name, _MODULE, filters={"rack": f"{name}:WithoutComma"})
    with pytest.raises(errors.ConfigurationError, match="the filter rack has a text instead of a list"):
        load_filters(options.new(), ["rack"])
    # The keys of a plug-in that is not enabled are left out.
    assert numeric_metadata().isdisjoint("rack_celsius")


@pytest.mark.parametrize(
    ("attribute", "value"),
    [
        ("options", "None"),
        ("options", "['max_bytes']"),
        ("options", "cfg.IntOpt('max_bytes')"),
        ("numeric_metadata", "None"),
        ("numeric_metadata", "[1]"),
        ("default_multiplier", "[1.0]"),
    ],
)
def test_a_plugin_with_an_attribute_of_a_wrong_type_is_refused_by_name_and_left_out_if_it_is_not_enabled(
    install: Install, attribute: str, value: str
) -> None:
    name = f"moorage_attributes_{abs(hash((attribute, value)))}"
    install(name, f"{_MODULE}\nclass Wrong(Heavy):\n    {attribute} = {value}\n", weighers={"rack": f"{name}:Wrong"})
    with pytest.raises(errors.ConfigurationError, match=rf"the weigher rack has .* as {attribute}, which is no "):
        load_weighers(options.new(), ["rack"])
    assert "cpu_weight_multiplier" in numeric_metadata()
    check_names(options.new())


@pytest.mark.parametrize(
    "module", ["raise SystemExit(4)", "assert False, 'never'", "import nothing_of_this_name", "def ("]
)
def test_a_plugin_whose_module_cannot_be_imported_is_refused_by_name(install: Install, module: str) -> None:
    name = f"moorage_module_{abs(hash(module))}"
    install(name, module, filters={"rack": f"{name}:RackFilter"})
    with pytest.raises(errors.ConfigurationError, match=r"the filter rack .*cannot be loaded"):
        load_filters(options.new(), ["rack"])


def test_two_packages_that_bring_a_plugin_of_one_name_are_refused(install: Install) -> None:
    for name in ("moorage_first", "moorage_second"):
        install(name, _MODULE, filters={"rack": f"{name}:Sound"})
    with pytest.raises(errors.ConfigurationError, match=r"two packages provide a filter rack: .*first.*second"):
        load_filters(options.new(), ["rack"])


def test_a_multiplier_is_a_number_whose_sums_are_finite(tmp_path: Path) -> None:
    conf = from_text(tmp_path, "[weighers]\nram_weight_multiplier = -1e308\n")
    sentence = r"\[weighers\] ram_weight_multiplier is -1e\+308, which is not between -1e\+100 and 1e\+100"
    with pytest.raises(errors.ConfigurationError, match=sentence):
        load_weighers(conf, ["ram"])


@pytest.mark.parametrize(
    ("enabling", "group", "option", "value", "wrong"),
    [
        ("enabled_filters = +num_instances", "filters", "max_instances_per_host", "", "it is empty"),
        ("enabled_filters = +io_ops", "filters", "max_io_ops_per_host", "9" * 400, "it is more than "),
        ("enabled_weighers = +metrics", "weighers", "metrics_required", "", "Unexpected boolean value"),
        ("enabled_weighers = +metrics", "weighers", "metrics_weight_of_unavailable", "nan", "it is not finite"),
        ("", "weighers", "ram_weight_multiplier", "", "it is empty"),
        ("", "weighers", "ram_weight_multiplier", "inf", "it is not finite"),
    ],
)
def test_a_policy_is_refused_if_an_option_of_a_plugin_is_empty_or_no_usable_number(
    enabling: str, group: str, option: str, value: str, wrong: str, tmp_path: Path
) -> None:
    conf = from_text(tmp_path, f"[scheduler]\n{enabling}\n[{group}]\n{option} = {value}\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        SchedulingPolicy.load(conf, FailureCounts())
    named = f"Value for option [{group}] {option} in {tmp_path / 'moorage.conf'} is not valid: "
    assert named + wrong in str(caught.value)


def test_a_number_of_a_plugin_may_be_more_than_the_seconds_that_a_thread_can_wait(
    install: Install, tmp_path: Path
) -> None:
    name = "moorage_bytes"
    install(name, _MODULE, filters={"sized": f"{name}:Sized"})
    [(_, loaded)] = load_filters(from_text(tmp_path, "[filters]\nmax_bytes = 20000000000\n"), ["sized"])
    assert vars(loaded)["max_bytes"] == 20_000_000_000
    with pytest.raises(errors.ConfigurationError, match=r"max_bytes in .* is not valid: it is more than 1e\+100"):
        load_filters(from_text(tmp_path, f"[filters]\nmax_bytes = {'9' * 101}\n"), ["sized"])


def test_an_option_that_a_plugin_has_renamed_or_moved_can_be_set_by_its_former_name(
    install: Install, tmp_path: Path
) -> None:
    name = "moorage_renamed_options"
    install(name, _MODULE, filters={"renamed": f"{name}:Renamed"})
    former = "[filters]\nrack-limit = 7\n[weighers]\nrack_fewest = 2\n[racks]\nspare = 3\n"
    conf = from_text(tmp_path, f"[scheduler]\nenabled_filters = renamed\n{former}")
    SchedulingPolicy.load(conf, FailureCounts())
    [(_, loaded)] = load_filters(conf, ["renamed"])
    assert loaded.settings == {"rack_most": 7, "rack_least": 2, "rack_spare": 3}
    with pytest.raises(errors.ConfigurationError, match=r"sets rack_limitt in \[filters\].*you mean rack.limit"):
        check_names(from_text(tmp_path, "[filters]\nrack_limitt = 7\n"))
