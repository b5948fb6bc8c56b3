"""Test authentication by Keystone: a server process behind the real middleware, which calls a Keystone over HTTP."""

from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
import requests
from support.http.api import Api, served
from support.http.fake_keystone import Keystone, Token, require_middleware, running

PROVIDERS = "/resource_providers"
TOKENS = {
    "administrator": Token(["admin", "reader"], "admins"),
    "service": Token(["service"], "service"),
    "reader": Token(["reader"], "tenant"),
    "nobody": Token([], "tenant"),
    "system": Token(["admin"], None),
    # A token may expire while the answer of Keystone is on its way.
    "just expired": Token(["admin"], "admins", valid_for=timedelta(seconds=-1)),
    "known before": Token(["admin"], "admins"),
}


class Site:
    """A Keystone that can be stopped and started, and the API that uses it."""

    def __init__(self, tmp_path_factory: pytest.TempPathFactory) -> None:
        self.keystone = Keystone(dict(TOKENS))
        self._running, self._closing = ExitStack(), ExitStack()
        self.start_keystone()
        folder = tmp_path_factory.mktemp("keystone")
        config = folder / "moorage.conf"
        config.write_text(f"[placement_api]\nauth_strategy = keystone\n{self.keystone.options}")
        words = ["--workers", "1", "--threads", "4"]
        self.api: Api = self._closing.enter_context(
            served(f"sqlite:///{folder}/main.sqlite", folder / "log", *words, config_file=config)
        )

    def stop_keystone(self) -> None:
        self._running.close()

    def start_keystone(self) -> None:
        self._running.enter_context(running(self.keystone))

    def close(self) -> None:
        self._closing.close()
        self._running.close()

    def ask(self, path: str, token: str | None, method: str = "GET", **headers: str) -> requests.Response:
        # A header of null is not sent.
        return self.api.ask(method, path, {} if method == "POST" else None, X_Auth_Token=token, **headers)  # type: ignore[arg-type]

    def status(self, path: str, token: str | None, method: str = "GET", **headers: str) -> int:
        return self.ask(path, token, method, **headers).status_code


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    require_middleware()
    made = Site(tmp_path_factory)
    yield made
    made.close()


def test_the_roles_of_a_token_decide_what_is_permitted(site: Site) -> None:
    assert site.status(PROVIDERS, "administrator") == 200
    assert site.status(PROVIDERS, "service") == 200
    assert site.status(PROVIDERS, "reader") == 403
    assert site.status(PROVIDERS, "nobody") == 403
    # The body is invalid; a caller without permission does not learn that.
    assert site.status("/reshaper", "service", "POST") == 400
    assert site.status("/reshaper", "administrator", "POST") == 403


def test_a_keystone_reader_sees_only_the_usages_of_its_own_project(site: Site) -> None:
    assert site.status("/usages?project_id=tenant", "reader") == 200
    assert site.status("/usages?project_id=other", "reader") == 403
    assert site.status("/usages?project_id=tenant", "nobody") == 403


def test_a_system_scoped_keystone_token_is_refused(site: Site) -> None:
    assert site.status(PROVIDERS, "system") == 403


@pytest.mark.parametrize("token", [None, "unknown", "just expired"])
def test_a_request_without_a_valid_token_is_401_with_the_url_of_keystone(site: Site, token: str | None) -> None:
    refused = site.ask(PROVIDERS, token)

    assert refused.status_code == 401
    assert site.keystone.url in refused.headers["WWW-Authenticate"]
    assert (token in site.keystone.asked_about) == (token is not None)


def test_identity_headers_sent_by_a_client_are_ignored(site: Site) -> None:
    headers = {"X_Roles": "admin", "X_User_Id": "admin", "X_Project_Id": "admins", "X_Identity_Status": "Confirmed"}

    assert site.status(PROVIDERS, "nobody", **headers) == 403
    assert site.status("/usages?project_id=other", "reader", X_Project_Id="other") == 403
    assert site.status(PROVIDERS, None, **headers) == 401


def test_the_root_is_served_without_asking_keystone(site: Site) -> None:
    before = len(site.keystone.asked_about)

    assert site.status("/", None) == 200
    assert site.status("/", "unknown") == 200

    assert len(site.keystone.asked_about) == before


def test_an_uncached_token_is_503_while_keystone_is_unreachable_and_works_afterwards(site: Site) -> None:
    assert site.status(PROVIDERS, "known before") == 200
    site.keystone.tokens["came while away"] = Token(["admin"], "admins")
    site.stop_keystone()

    assert site.status(PROVIDERS, "came while away") == 503
    assert site.status("/", None) == 200

    site.start_keystone()
    assert site.status(PROVIDERS, "came while away") == 200
