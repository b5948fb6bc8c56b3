"""Test invalid policy files: a server does not start with one, and a running server keeps its former rules."""

import logging
import os
import time
from pathlib import Path

import pytest
from oslo_context.context import RequestContext

from harness.waiting import wait_until
from moorage import errors
from moorage.config import options
from placement_store.http import wsgi
from placement_store.http.policy import PolicyEnforcer
from placement_store.http.refusals import HTTPRefusal

RULE = "placement:traits:list"
FOR_LOOKERS = f'"{RULE}": "role:looker"\n'
#: No YAML; no mapping; a rule that is no text; no text at all.
INVALID = [b"a: [b", b"[1]", b'"a": 5', b"\xff\xfe"]

invalid = pytest.mark.parametrize("content", INVALID)


def configuration(folder: Path, rules: Path) -> Path:
    file = folder / "moorage.conf"
    file.write_text(
        f"[placement_api]\nauth_strategy = noauth2\n[database]\nconnection = sqlite:///{folder}/main\n"
        f"[oslo_policy]\npolicy_file = {rules}\n"
    )
    return file


@invalid
def test_a_server_does_not_start_with_an_invalid_policy_file_and_names_it(tmp_path: Path, content: bytes) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_bytes(content)

    with pytest.raises(errors.ConfigurationError, match=f"policy file {rules} cannot be used: ") as caught:
        wsgi.prepare_once(options.new(files=[configuration(tmp_path, rules)]))

    assert "\n" not in str(caught.value)


def test_a_server_does_not_start_without_the_policy_file_that_its_configuration_names(tmp_path: Path) -> None:
    rules = tmp_path / "polcy.yaml"

    with pytest.raises(errors.ConfigurationError, match=f"policy_file = {rules}: there is no such file"):
        wsgi.prepare_once(options.new(files=[configuration(tmp_path, rules)]))


def test_without_an_option_there_need_not_be_a_policy_file(tmp_path: Path) -> None:
    file = tmp_path / "moorage.conf"
    file.write_text("[placement_api]\nauth_strategy = noauth2\n")

    PolicyEnforcer(options.new(files=[file])).authorize("placement:usages", RequestContext(roles=["admin"]), {})


@invalid
def test_a_running_server_keeps_its_rules_if_the_policy_file_becomes_invalid(
    tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    rules = tmp_path / "policy.yaml"
    rules.write_text(FOR_LOOKERS)
    policy = PolicyEnforcer(options.new(files=[configuration(tmp_path, rules)]))

    def allows(role: str) -> bool:
        try:
            policy.authorize(RULE, RequestContext(roles=[role], project_id="p"), {})
        except HTTPRefusal:
            return False
        return True

    def replace(new: bytes, later: int) -> None:
        rules.write_bytes(new)
        # A change is noticed by the modification time of the file.
        os.utime(rules, (time.time() + later, time.time() + later))

    assert (allows("looker"), allows("admin")) == (True, False)
    replace(content, 10)
    with caplog.at_level(logging.ERROR):
        # Decisions are cached for a moment, so the change is noticed later.
        wait_until(lambda: (allows("looker"), allows("admin"), len(caplog.messages)) == (True, False, 1), "the error")
    assert f"policy file {rules} cannot be used: " in caplog.text

    replace(FOR_LOOKERS.replace("looker", "admin").encode(), 20)
    wait_until(lambda: (allows("looker"), allows("admin")) == (False, True), "the new rules")
