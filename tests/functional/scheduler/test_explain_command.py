"""Test `moorage explain` on a cloud of fake hosts: its tables, its exit statuses and its JSON."""

import argparse
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, NoReturn

import pytest

from harness.cloud import CloudSpec, RunningCloud
from harness.commands import build_all
from moorage import ids
from moorage.bus.bus import Bus, serves
from moorage.cli.shell import Shell, main
from moorage.config import options
from moorage.messages import BuildInstances, ExplainRequest, ShowInstance
from moorage.messages.wire import encode
from moorage.model import Explanation, Flavor, Instance, RequestSpec
from scheduler.commands.explain import Explain

SIZE = ("--vcpus", "2", "--memory-mb", "4096", "--root-gb", "20")
HUGE = RequestSpec(project_id="p", user_id="u", flavor=Flavor(vcpus=17, memory_mb=4096))


class Typed:
    """The output and the exit status of a command."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    @property
    def data(self) -> Any:
        return json.loads(self.out)


Types = Callable[..., Typed]


@pytest.fixture(scope="module")
def cloud() -> Iterator[RunningCloud]:
    """Four hosts of 16 VCPU and 32 GiB in two cells, with GPUs as attributes, and three instances of 2 VCPU."""
    settings: dict[str, dict[str, Any]] = {
        "scheduler": {"view_max_age": 0.0},
        "fake_driver": {"attributes": ['{"gpu": "t4"}', 'cell2-host-0002: {"gpu": "a100"}']},
    }
    with RunningCloud(CloudSpec(hosts=4, cells=2, settings=settings)) as running:
        assert all(instance.state == "active" for instance in build_all(running, 3))
        yield running


@pytest.fixture
def types(cloud: RunningCloud, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Types:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = {cloud.transport_url}\n")

    def typed(*words: str) -> Typed:
        capsys.readouterr()
        try:
            status = main(["--config-file", str(file), "explain", *words])
        except SystemExit as ended:
            status = int(str(ended.code))
        printed = capsys.readouterr()
        return Typed(status, printed.out, printed.err)

    return typed


@pytest.fixture(scope="module")
def refused(cloud: RunningCloud) -> Instance:
    """An instance that no host has room for."""
    conductor = cloud.client("conductor")
    uuid = ids.fresh()
    conductor.call(BuildInstances(request_id="too-large", request_spec=HUGE, instance_uuids=(uuid,)))
    while (instance := conductor.call(ShowInstance(instance_uuid=uuid))).state == "building":
        pass
    assert instance.state == "error"
    return instance


# --- Requests in arguments --------------------------------------------------------------------------------------------


def test_a_request_that_finds_a_host_ends_with_0_and_shows_the_scores(types: Types) -> None:
    typed = types(*SIZE, "--what-if", "-f", "json")
    assert typed.status == 0
    shown = typed.data
    assert (shown["hosts"], shown["feasible"]) == (4, 4)
    assert shown["chosen"] == shown["top_hosts"][0]["host"]
    assert {score["weigher"] for score in shown["top_hosts"][0]["scores"]} >= {"ram", "cpu", "disk"}
    assert shown["what_if"]["more"] == 4 * 8 - 3
    assert sum(shown["what_if"]["cells"].values()) == shown["what_if"]["more"]


def test_a_request_that_finds_no_host_ends_with_1_and_a_table_shows_the_reasons(types: Types) -> None:
    typed = types("--vcpus", "17", "--memory-mb", "64", "--host", "cell1-host-0001")
    assert typed.status == 1
    for words in ("NO VALID HOST", "0 of 4 hosts: 4 short of VCPU", "17 asked", "cell1-host-0001 has not enough room"):
        assert words in typed.out
    assert types("--vcpus", "17", "--memory-mb", "64", "-f", "json").data["chosen"] is None


def test_a_named_host_that_is_not_chosen_is_compared_with_the_chosen_host(types: Types) -> None:
    chosen = types(*SIZE, "-f", "json").data["top_hosts"]
    typed = types(*SIZE, "--host", chosen[-1]["host"])
    assert typed.status == 0
    assert f"behind {chosen[0]['host']}: " in typed.out


def test_attributes_of_hosts_are_used_and_shown(types: Types) -> None:
    typed = types(*SIZE, "--extra-spec", "capabilities:gpu=a100", "--host", "cell1-host-0001", "-f", "json")
    assert (typed.data["feasible"], typed.data["chosen"]) == (1, "cell2-host-0002")
    assert typed.data["named_hosts"]["cell1-host-0001"] == (
        "does not meet the flavor's capabilities:gpu=a100, but says 't4'"
    )


def test_a_request_spec_is_read_from_a_file(types: Types, tmp_path: Path) -> None:
    file = tmp_path / "spec.json"
    file.write_text(json.dumps(encode(HUGE)))
    assert types("--spec", str(file)).status == 1


# --- Recorded instances and requests ----------------------------------------------------------------------------------


def test_a_refused_instance_is_shown_with_its_stored_explanation_or_with_a_new_one(
    types: Types, refused: Instance
) -> None:
    typed = types("--instance", refused.uuid, "-f", "json")
    assert typed.status == 1
    assert refused.explanation is not None
    assert typed.data["why"] == refused.explanation.summary()
    assert "when it was refused" in typed.data["asked"]
    assert types("--instance", refused.uuid, "--now", "-f", "json").data["asked"] == "now"
    by_request = types("--request-id", "too-large", "-f", "json")
    assert (by_request.status, by_request.data["instance"]) == (1, refused.uuid)


def test_a_refused_instance_is_explained_again_in_another_size(types: Types, refused: Instance) -> None:
    for source in (("--instance", refused.uuid), ("--request-id", "too-large")):
        typed = types(*source, *SIZE, "-f", "json")
        assert (typed.status, typed.data["asked"]) == (0, "now")


def test_a_missing_value_is_empty_in_a_table_and_null_in_json(types: Types, refused: Instance) -> None:
    assert "None" not in types("--instance", refused.uuid).out
    assert types("--instance", refused.uuid, "-f", "json").data["on_host"] is None


def test_a_placed_instance_is_explained_as_if_it_were_placed_now(cloud: RunningCloud, types: Types) -> None:
    uuid = ids.derived("demo", cloud.plan.seed, "instance", 0)
    host = cloud.client("conductor").call(ShowInstance(instance_uuid=uuid)).host
    typed = types("--instance", uuid, "-f", "json")
    assert typed.status == 0
    assert host in typed.data["named_hosts"]
    moving = types("--instance", uuid, "--moving", "live-migration", "-f", "json")
    assert moving.status == 0
    assert moving.data["named_hosts"][host].startswith("is the host that the server is to leave")


def test_instance_show_has_a_summary_and_the_command_for_the_whole_explanation(
    cloud: RunningCloud, types: Types, refused: Instance, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    assert main(["--config-file", str(tmp_path / "moorage.conf"), "instance", "show", refused.uuid, "-f", "json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["explanation"].startswith("0 of 4 hosts: 4 short of VCPU")
    assert shown["explained_by"] == f"moorage explain --instance {refused.uuid}"


# --- Invalid input and failures ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "named"),
    [
        ((*SIZE, "--host", "nobody"), "There is no host nobody"),
        (("--instance", "nobody"), "There is no instance nobody"),
        (("--instance", ids.derived("tests", "nobody")), "There is no instance"),
        (("--request-id", "nothing"), "there is no record of an order with request id nothing"),
        (("--spec", "/nowhere/spec.json"), "--spec /nowhere/spec.json"),
        (("--vcpus", "1"), "--memory-mb"),
        ((*SIZE, "--moving", "resize"), "--moving"),
        ((*SIZE, "--moving", "sideways"), "sideways"),
        ((*SIZE, "--count", "0"), "--count"),
        (("--vcpus", "0", "--memory-mb", "1"), "$.request_spec.flavor.vcpus"),
        ((*SIZE, "--resource", "CUSTOM_NOTHING=1"), "There is no resource class CUSTOM_NOTHING"),
        ((*SIZE, "--server-group", ids.derived("tests", "nothing")), "There is no server group"),
        (("--instance", "a", "--spec", "b"), "not allowed with"),
        ((*SIZE, "-c", "colour"), "--column: No recognized column names in ['colour']"),
        (("--spec", "b", *SIZE), "--memory-mb: it has no effect, because --spec gives"),
        (("--instance", "a", "--availability-zone", "z"), "--availability-zone: it has no effect, because --inst"),
        (("--request-id", "a", "--required", "HW_A"), "--resource, --required, --group and their like: it has no"),
        (("--instance", "a", "--vcpus", "2"), "--vcpus, --memory-mb: both must be given"),
        (("--request-id", "a", "--root-gb", "2"), "--vcpus, --memory-mb: both must be given"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_invalid_input_is_named_and_ends_with_2(types: Types, words: tuple[str, ...], named: str) -> None:
    typed = types(*words)
    assert typed.status == 2
    assert named in typed.err
    assert "Traceback" not in typed.err
    assert typed.out == ""


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{", "truncated"),
        ("[]", "Expected `object`"),
        ('{"project_id": "p", "user_id": "u", "flavor": {"vcpus": "two", "memory_mb": 1}}', "$.flavor.vcpus"),
        ('{"project_id": "p", "user_id": "u", "flavor": {"vcpus": 1, "memory_mb": 1}, "colour": "red"}', "colour"),
    ],
)
def test_a_malformed_spec_is_refused_with_the_path_of_its_fault(
    types: Types, tmp_path: Path, text: str, named: str
) -> None:
    file = tmp_path / "spec.json"
    file.write_text(text)
    typed = types("--spec", str(file))
    assert typed.status == 2
    assert named in typed.err
    assert "Traceback" not in typed.err


class OutOfInk(Explain):
    def take_action(self, parsed_args: argparse.Namespace) -> NoReturn:
        raise RuntimeError("out of ink")


def test_an_error_of_the_command_itself_ends_with_3(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell()
    shell.options = argparse.Namespace(debug=False)
    command = OutOfInk(shell, None, "explain")
    assert command.run(command.get_parser("moorage explain").parse_args(SIZE)) == 3
    assert capsys.readouterr().err == "It is unknown whether there is a host: RuntimeError: out of ink\n"


def test_without_an_answer_of_a_scheduler_the_command_ends_with_3(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://{ids.fresh()}/\n[rpc]\ncall_timeout = 0.2\n")
    assert main(["--config-file", str(file), "explain", *SIZE]) == 3
    assert "It is unknown whether there is a host" in capsys.readouterr().err


class SlowScheduler:
    """A scheduler that searches for longer than a command waits for an answer that needs no search."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()

    @serves(ExplainRequest)
    def explain(self, message: ExplainRequest) -> Explanation:
        if message.what_if:
            assert self.may_answer.wait(60)
            time.sleep(1.0)
        return Explanation(hosts=1)


def test_the_answer_to_what_if_is_waited_for_as_long_as_the_scheduler_may_search(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text(f"[DEFAULT]\ntransport_url = inproc://{ids.fresh()}/\n[rpc]\ncall_timeout = 0.5\n")
    with closing(Bus(options.new(files=[file]))) as bus:
        scheduler = SlowScheduler()
        bus.server("scheduler", "one", [scheduler]).start()
        words = ["--config-file", str(file), "explain", *SIZE, "--what-if", "--patience"]
        assert main([*words, "0.1"]) == 3
        assert "There was no answer" in capsys.readouterr().err
        scheduler.may_answer.set()
        assert main([*words, "20"]) == 1
