"""Test that unknown names, invalid values and missing options in a configuration file are errors in one sentence."""

import os
from pathlib import Path

import pytest
from support.moorage.configuration import from_text

from moorage import errors
from moorage.bus.bus import Bus
from moorage.config import calls, options
from moorage.db.database import Database
from scheduler.plugins.loading import load_weighers


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(errors.ConfigurationError) as caught:
        from_text(tmp_path, text)
    assert str(tmp_path / "moorage.conf") in str(caught.value)
    return str(caught.value)


def test_an_invalid_value_is_reported_with_its_option_and_file(tmp_path: Path) -> None:
    assert refused(tmp_path, "[scheduler]\nbroken_plugin = maybe\n") == (
        "The configuration is wrong: Value for option [scheduler] broken_plugin in "
        f"{tmp_path / 'moorage.conf'} is not valid: Valid values are [fail, skip], but found 'maybe'."
    )


@pytest.mark.parametrize(
    ("option", "value", "wrong"),
    [("call_timeout", "soon", "'soon' is not a number."), ("send_retries", "1.5", "'1.5' is not a whole number.")],
)
def test_a_text_that_is_no_number_is_refused_without_the_words_of_the_language(
    option: str, value: str, wrong: str, tmp_path: Path
) -> None:
    assert refused(tmp_path, f"[rpc]\n{option} = {value}\n").endswith(f"moorage.conf is not valid: {wrong}")


def test_an_invalid_value_of_a_plugins_option_is_reported_in_one_sentence(tmp_path: Path) -> None:
    conf = from_text(tmp_path, "[weighers]\nram_weight_multiplier = much\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        load_weighers(conf, ["ram"])

    assert "ram_weight_multiplier" in str(caught.value)
    assert "LocationInfo" not in str(caught.value)


@pytest.mark.parametrize(
    ("section", "option", "value"),
    [
        ("conductor", "report_interval", "soon"),
        ("rpc", "call_timeout", "nan"),
        ("service", "report_interval", "inf"),
        ("service", "prune_interval", "1e300"),
        ("database", "pool_size", ""),
        ("placement_api", "serve_metrics", ""),
        ("scheduler", "max_claim_tries", "99999999999999999999"),
        ("oslo_messaging_rabbit", "rabbit_retry_interval", "soon"),
        ("fake_driver", "availability_zone", ""),
        ("placement_api", "incomplete_consumer_project_id", ""),
        ("placement_api", "incomplete_consumer_user_id", "u" * 256),
        ("fake_driver", "shared_disk_aggregate", "pool"),
        ("fake_driver", "traits", "HW_CPU_X86_AVX2, custom_low"),
        ("SCHEDULER", "broken_plugin", "maybe"),
        ("Rpc", "call_timeout", "nan"),
        ("DEFAULT", "debug", "perhaps"),
        ("DEFAULT", "use_json", "perhaps"),
    ],
)
def test_a_value_that_an_option_cannot_have_is_reported_with_its_file_section_and_option(
    section: str, option: str, value: str, tmp_path: Path
) -> None:
    text = refused(tmp_path, f"[{section}]\n{option} = {value}\n")
    group = section if section == "DEFAULT" else section.lower()
    assert f"Value for option [{group}] {option} in {tmp_path / 'moorage.conf'} is not valid: " in text


@pytest.mark.parametrize("group", ["compute", "conductor"])
@pytest.mark.parametrize("down_after", ["", "[scheduler]\nhost_down_after = 59\n"])
def test_hosts_must_not_count_as_down_between_two_reports(tmp_path: Path, group: str, down_after: str) -> None:
    text = refused(tmp_path, f"[{group}]\nreport_interval = 20.1\n{down_after}")
    assert "[scheduler] host_down_after in " in text
    assert f"must be at least 3 times [{group}] report_interval, which is 20.1" in text


@pytest.mark.parametrize("text", ["report_interval = 31", "silent_after = 19", "report_interval = 2\nsilent_after = 3"])
def test_a_service_must_not_count_as_silent_between_two_reports(tmp_path: Path, text: str) -> None:
    assert "[service] silent_after in " in refused(tmp_path, f"[service]\n{text}\n")


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("[database]\nlock_wait_timeout = 16\n", "[database] statement_timeout in "),
        ("[database]\nstatement_timeout = 1.5\n", "more than [database] lock_wait_timeout, which is 2.0"),
        ("[database]\nstatement_timeout = 2\n", "at least 1 second more than [database] lock_wait_timeout"),
        ("[database]\nstatement_timeout = 1.9\nlock_wait_timeout = 1.5\n", "[database] statement_timeout in "),
        ("[conductor]\nlease_seconds = 29\n", "at least [database] idle_transaction_timeout, which is 30.0"),
        ("[scheduler]\nview_compare_interval = 3601\n", "[scheduler] feed_retention in "),
    ],
)
def test_values_that_do_not_fit_each_other_are_refused_by_name(tmp_path: Path, text: str, named: str) -> None:
    assert named in refused(tmp_path, text)


def test_a_statement_may_take_one_second_longer_than_it_may_wait_for_a_row_lock(tmp_path: Path) -> None:
    from_text(tmp_path, "[database]\nstatement_timeout = 3\n")
    from_text(tmp_path, "[database]\nstatement_timeout = 2\nlock_wait_timeout = 1\n")


def test_an_idle_transaction_without_a_limit_fits_every_lease(tmp_path: Path) -> None:
    from_text(tmp_path, "[database]\nidle_transaction_timeout = 0\n[conductor]\nlease_seconds = 1\n")


def test_intervals_of_reports_may_be_raised_together_with_the_time_after_which_hosts_are_down(tmp_path: Path) -> None:
    from_text(tmp_path, "[compute]\nreport_interval = 40\n[scheduler]\nhost_down_after = 120\n")


def test_a_command_that_calls_services_refuses_the_same_values_of_moorages_own_options(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[rpc]\ncall_timeout = nan\n")
    with pytest.raises(errors.ConfigurationError, match=r"\[rpc\] call_timeout in .*moorage.conf is not valid"):
        calls.read([file])


@pytest.mark.parametrize("text", ["ssl = perhaps", "ssl ="])
def test_a_command_that_calls_services_refuses_invalid_values_of_the_buss_options_that_it_reads(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[oslo_messaging_rabbit]\n{text}\n")
    with pytest.raises(
        errors.ConfigurationError, match=r"\[oslo_messaging_rabbit\] ssl in .*moorage.conf is not valid"
    ):
        calls.read([file])


@pytest.mark.parametrize("value", ["", "nan", "-5", "soon"])
@pytest.mark.parametrize("variable", ["OS_RPC__CALL_TIMEOUT", "OS_SERVICE__SILENT_AFTER"])
def test_a_command_that_calls_services_refuses_invalid_values_of_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(errors.ConfigurationError, match=rf"Value for option .* in {variable} is not valid"):
        calls.read([])


@pytest.mark.parametrize(
    ("variable", "said"),
    [
        ("OS_DATABASE__CONECTION", "[database] has no option conection: perhaps you mean OS_DATABASE__CONNECTION"),
        ("OS_RPC__XYZZY", "[rpc] has no option xyzzy"),
        ("OS_DATABSE__URL", "no service reads a section [databse]: perhaps you mean OS_DATABASE__URL"),
    ],
)
def test_a_variable_of_the_environment_that_sets_no_option_is_a_warning_that_names_what_was_meant(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, variable: str, said: str
) -> None:
    monkeypatch.setenv(variable, "x")
    options.new()
    calls.read([])
    assert caplog.messages == [f"The environment sets {variable}, but {said}"] * 2


def test_variables_of_the_environment_that_set_options_or_are_of_other_programs_are_no_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for name in (
        "OS_RPC__THREADS", "OS_DEFAULT__DEBUG", "OS_DEFAULT__MY_IP", "OS_OSLO_MESSAGING_RABBIT__HEARTBEAT_RATE",
        "OS_KEYSTONE_AUTHTOKEN__AUTH_URL", "OS_FILTERS__RACK_ATTRIBUTE", "OS_LIBVIRT__VIRT_TYPE", "OS_AUTH_URL",
    ):  # fmt: skip
        monkeypatch.setenv(name, "1")
    calls.read([])
    options.new()
    assert caplog.messages == []


def test_a_value_with_a_dollar_that_begins_no_name_is_reported_with_its_option(tmp_path: Path) -> None:
    text = refused(tmp_path, "[DEFAULT]\ntransport_url = rabbit://u:pa$ss@h/\n[service]\nmetrics_port =\n")
    assert f"Value for option [DEFAULT] transport_url in {tmp_path / 'moorage.conf'} is not valid: " in text
    assert "Write $$ for one $" in text


def test_a_port_may_be_empty_and_a_retention_a_hundred_years(tmp_path: Path) -> None:
    conf = from_text(tmp_path, "[service]\nmetrics_port =\n[placement]\ntombstone_retention = 3153600000\n")
    assert conf.service.metrics_port is None
    assert conf.placement.tombstone_retention == 3153600000


def test_a_number_without_a_minimum_has_no_maximum_either(tmp_path: Path) -> None:
    conf = from_text(tmp_path, "[fake_driver]\nseed = 99999999999999999999\n[service]\nmetrics_port = 0\n")
    assert conf.fake_driver.seed == 99999999999999999999


def test_a_misspelt_option_is_an_error_that_names_what_was_meant(tmp_path: Path) -> None:
    text = refused(tmp_path, "[scheduler]\nenabled_filter = ram\n")
    assert "enabled_filter in [scheduler]" in text
    assert "perhaps you mean enabled_filters" in text


def test_an_option_that_resembles_none_is_an_error_too(tmp_path: Path) -> None:
    assert "xyzzy in [database], which is not an option of this section" in refused(tmp_path, "[database]\nxyzzy = 1\n")


def test_an_option_with_hyphens_is_an_error_because_the_library_reads_it_with_underscores(tmp_path: Path) -> None:
    assert "perhaps you mean log_file" in refused(tmp_path, "[DEFAULT]\nlog-file = x.log\n")


@pytest.mark.parametrize(
    ("section", "meant"),
    [
        ("databse", "database"),
        ("schedulers", "scheduler"),
        ("schedulr", "scheduler"),
        ("cmopute", "compute"),
        ("filter", "filters"),
        ("fak_driver", "fake_driver"),
        ("placement-api", "placement_api"),
        ("default", "DEFAULT"),
        ("defaults", "DEFAULT"),
    ],
)
def test_a_misspelt_section_is_an_error_that_names_what_was_meant(tmp_path: Path, section: str, meant: str) -> None:
    text = refused(tmp_path, f"[{section}]\nconnection = sqlite:////tmp/none\n")
    assert f"[{section}], which no service reads: perhaps you mean [{meant}]" in text


@pytest.mark.parametrize(
    "text",
    [
        "[oslo_messaging_rabbit]\nrabbit_qos_prefetch_count = 2\n",
        "[keystone_authtoken]\nauth_url = http://127.0.0.1\nusername = placement\n",
        "[cors.dashboard]\nallowed_origin = https://127.0.0.1\n",
        "[libvirt]\nvirt_type = kvm\n",
        "[kvm_driver]\nuri = qemu:///system\n[compute_driver]\nuri = qemu:///system\n",
        "[service_user]\nauth_type = password\n[policy]\n[api_database]\n[filter_scheduler]\n[oslo_messaging_amqp]\n",
        "[filters]\nrack_attribute = row\n",
        "[DEFAULT]\ndebug = true\nlog_file = x.log\n",
        "[DATABASE]\npool_size = 3\n",
    ],
    ids=[
        "a library's",
        "keystone's",
        "another origin's",
        "a driver's",
        "drivers'",
        "Nova's",
        "a plug-in's",
        "the log's",
        "in capitals",
    ],
)
def test_a_file_may_contain_what_other_programs_read(tmp_path: Path, text: str) -> None:
    from_text(tmp_path, text)


def test_deprecated_names_of_options_are_accepted(tmp_path: Path) -> None:
    assert from_text(tmp_path, "[DEFAULT]\nrpc_response_timeout = 3\nlogdir = /tmp\n").log_dir == "/tmp"


def test_a_wrong_value_under_a_deprecated_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"\[DEFAULT\] executor_thread_pool_size.* is not valid"):
        from_text(tmp_path, "[DEFAULT]\nrpc_thread_pool_size = many\n")


def test_a_missing_database_option_without_a_file_is_reported_with_what_to_do() -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Database.configured(options.new())
    assert str(caught.value) == (
        "The configuration is wrong: [database] connection is not set, and no configuration file was read: name one "
        "with --config-file or MOORAGE_CONFIG, or write /etc/moorage/moorage.conf."
    )


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///", "sqlite:///:memory:", "sqlite+pysqlite://?timeout=3"])
def test_a_database_in_memory_is_refused_and_one_in_a_file_is_not(tmp_path: Path, url: str) -> None:
    with pytest.raises(errors.ConfigurationError, match="is a database in memory, which ends with its process"):
        options.main_database(from_text(tmp_path, f"[database]\nconnection = {url}\n"))
    for file in ("sqlite:////var/lib/moorage/main.sqlite", "sqlite:///main.sqlite"):
        assert options.main_database(from_text(tmp_path, f"[database]\nconnection = {file}\n")) == file


def test_a_missing_broker_option_is_reported_with_the_file(tmp_path: Path) -> None:
    conf = from_text(tmp_path, "[database]\nconnection = sqlite:////tmp/none\n")
    with pytest.raises(errors.ConfigurationError) as caught:
        Bus(conf)
    assert str(caught.value) == (
        f"The configuration is wrong: [DEFAULT] transport_url is not set in {tmp_path / 'moorage.conf'}."
    )


@pytest.mark.parametrize(
    "url", ["secret", "nosuch://user:secret@127.0.0.1/x", "mysql+pymsql://user:secret@127.0.0.1/x"]
)
def test_an_invalid_url_is_refused_without_being_shown(url: str) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        Database(url, "main")
    assert "main database" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_deprecated_option_of_the_bus_library_does_not_prevent_a_second_connection(tmp_path: Path) -> None:
    conf = from_text(
        tmp_path,
        "[DEFAULT]\ntransport_url = rabbit://127.0.0.1/\n[oslo_messaging_rabbit]\ndirect_mandatory_flag = false\n",
    )
    Bus(conf).close()
    assert conf.oslo_messaging_rabbit.direct_mandatory_flag is False
    Bus(conf).close()


def test_a_directory_in_the_place_of_a_file_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(errors.ConfigurationError, match=f"{tmp_path} cannot be read: Is a directory"):
        options.new(files=[tmp_path])


def test_what_is_no_file_in_the_place_of_the_configuration_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(errors.ConfigurationError, match=f"the configuration file {tmp_path} is a directory"):
        options.find_file(str(tmp_path))
    with pytest.raises(errors.ConfigurationError, match=f"the configuration file {pipe} is not a regular file"):
        options.find_file(str(pipe))
    monkeypatch.delenv("MOORAGE_CONFIG", raising=False)
    monkeypatch.setattr(options, "DEFAULT_FILE", tmp_path)
    with pytest.raises(errors.ConfigurationError, match=f"the configuration file {tmp_path} is a directory"):
        options.find_file(None)


def test_a_file_that_is_masked_is_empty(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    masked = tmp_path / "moorage.conf"
    masked.symlink_to("/dev/null")
    monkeypatch.delenv("MOORAGE_CONFIG", raising=False)
    monkeypatch.setattr(options, "DEFAULT_FILE", masked)
    default = options.new().scheduler.view_max_age
    assert options.new(files=options.find_file(None)).scheduler.view_max_age == default


def test_a_file_that_cannot_be_looked_for_is_refused_by_its_name() -> None:
    # A directory that may not be read has the same effect, but not for every user who runs tests.
    with pytest.raises(errors.ConfigurationError, match="x cannot be read: File name too long"):
        options.find_file("x" * 300)


def test_a_file_that_is_not_text_is_refused_by_its_name(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_bytes(b"[database]\nconnection = \xff\n")
    with pytest.raises(errors.ConfigurationError) as refused:
        options.new(files=[file])

    assert str(refused.value) == f"The configuration is wrong: {file} is not text in UTF-8."


@pytest.mark.parametrize(
    ("group", "name", "value", "wrong"),
    [
        ("fake_driver", "vcpus", "x", "'x' is not a whole number"),
        ("fake_driver", "vcpus", [], "not 'list'"),
        ("fake_driver", "vcpus", float("inf"), "cannot convert float infinity"),
        ("fake_driver", "traits", 3, "'int' object"),
        ("rpc", "call_timeout", "soon", "'soon' is not a number"),
        ("DEFAULT", "debug", "perhaps", "Unexpected boolean value"),
    ],
)
def test_an_invalid_value_of_the_settings_is_reported_with_its_option(
    group: str, name: str, value: object, wrong: str
) -> None:
    with pytest.raises(errors.ConfigurationError) as caught:
        options.new({group: {name: value}})

    assert f"Value for option [{group}] {name} is not valid: " in str(caught.value)
    assert wrong in str(caught.value)
