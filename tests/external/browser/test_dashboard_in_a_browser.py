"""Use the dashboard in a real browser, a headless Chromium, with the mouse and the keyboard."""

import json
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from oslo_policy.policy import Enforcer
from selenium import webdriver
from selenium.common.exceptions import StaleElementReferenceException
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import WebDriverWait
from support.dashboard import SETTINGS
from support.processes.private_servers import program

from dashboard.service import DashboardService
from harness.cloud import CloudSpec, RunningCloud
from harness.commands import FLAVOR
from harness.servers import free_ports
from moorage import ids
from moorage.messages import BuildInstances
from moorage.model import Flavor, RequestSpec
from placement_store.schema import inventories
from scheduler.service import SchedulerService

_PATIENCE = 20.0
_FLAGS = ("--headless=new", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=1280,800", "--hide-scrollbars")
#: The colour of the page's background, by theme.
_LIGHT, _DARK = "rgba(245, 247, 249, 1)", "rgba(18, 22, 27, 1)"

#: Two cells, and an answer about a host on which nothing is.
_CELLS = [ids.derived("browser", "cell", number) for number in range(2)]
_HOST: dict[str, Any] = {
    "providers": [],
    "consumers": [],
    "metadata": {},
    "attributes": {},
    "zone": "nova",
    "up": True,
    "disabled": False,
    "forced_down": False,
    "io_ops": 0,
    "failed_builds": 0,
}
_PICTURE = "return arguments[0].toDataURL()"


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, RunningCloud]]:
    """The address of a dashboard, and the cloud behind it. User `looker` may read, and may not start an audit."""
    [port] = free_ports(1)
    rules = tmp_path_factory.mktemp("policy") / "policy.yaml"
    rules.write_text('"dashboard:read": "user_id:looker or rule:admin_or_service_api"\n')
    settings = {**SETTINGS, "dashboard": {**SETTINGS["dashboard"], "port": port}}
    with RunningCloud(CloudSpec(hosts=6, cells=2, placement_apart=True, settings=settings)) as cloud:
        conf = cloud.configuration()
        Enforcer(conf)  # registers the options of its group
        conf.set_override("policy_file", str(rules), group="oslo_policy")
        cloud.add("dashboard", DashboardService(conf))
        yield f"http://127.0.0.1:{port}/", cloud


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """A headless Chromium from Debian's packages."""
    browser, driver = program("chromium", "chromium"), program("chromedriver", "chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in _FLAGS:
        options.add_argument(flag)
    if os.geteuid() == 0:
        # The sandbox of Chromium does not start as root.
        options.add_argument("--no-sandbox")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    running = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield running
    running.quit()


@pytest.fixture
def look(chromium: Any, page: tuple[str, RunningCloud]) -> Iterator[Any]:
    """A browser that has logged in; an error in its console fails the test."""
    url, _cloud = page
    chromium.get(url)
    chromium.execute_script("sessionStorage.clear(); localStorage.clear()")
    chromium.get(url)
    until(chromium, lambda: chromium.find_element(By.ID, "token").is_displayed())
    chromium.find_element(By.ID, "token").send_keys("admin", Keys.ENTER)
    until(chromium, lambda: "6 of 6" in text(chromium, "#totals"))
    yield chromium
    severe = [entry["message"] for entry in chromium.get_log("browser") if entry["level"] == "SEVERE"]
    assert not severe


def until(browser: Any, true: Callable[[], Any]) -> Any:
    waiting = WebDriverWait(browser, _PATIENCE, poll_frequency=0.1, ignored_exceptions=[StaleElementReferenceException])
    return waiting.until(lambda _: true())


def text(browser: Any, selector: str) -> str:
    return str(browser.find_element(By.CSS_SELECTOR, selector).text)


def order(cloud: RunningCloud, flavor: Flavor = FLAVOR, project: str = "demo") -> str:
    request_id = ids.fresh()
    uuid = ids.derived(request_id, "instance", 0)
    spec = RequestSpec(project_id=project, user_id="demo", flavor=flavor)
    message = BuildInstances(request_id=request_id, request_spec=spec, instance_uuids=(uuid,))
    cloud.client("conductor").call(message)
    return uuid


def test_a_build_appears_on_the_open_page_and_the_keyboard_opens_its_host(
    look: Any, page: tuple[str, RunningCloud]
) -> None:
    _url, cloud = page
    before = int(text(look, "#totals div:nth-child(2) dd"))
    uuid = order(cloud)
    until(look, lambda: int(text(look, "#totals div:nth-child(2) dd")) == before + 1)

    look.find_element(By.TAG_NAME, "body").send_keys("2")
    # The legend of a chart is a table too.
    until(look, lambda: uuid[:8] in text(look, "main .scroll table"))
    placed = look.find_element(By.CSS_SELECTOR, "main tbody tr a[href^='#/hosts/']").text
    look.find_element(By.TAG_NAME, "body").send_keys("/")
    look.switch_to.active_element.send_keys(placed)
    until(look, lambda: text(look, "main p[role=status]") == "1 of 6 hosts")
    look.find_element(By.TAG_NAME, "canvas").send_keys(Keys.ENTER)
    until(look, lambda: uuid[:8] in text(look, "#panel .guests"))
    assert text(look, "#panel h2") == placed
    look.find_element(By.CSS_SELECTOR, "#panel button").send_keys(Keys.ESCAPE)
    until(look, lambda: not look.find_element(By.ID, "panel").is_displayed())


def test_a_refused_request_has_a_funnel_and_a_click_on_the_map_shows_why_a_host_was_refused(
    look: Any, page: tuple[str, RunningCloud]
) -> None:
    _url, cloud = page
    # A project name that contains HTML must be shown as text.
    uuid = order(cloud, Flavor(vcpus=2, memory_mb=1_000_000, root_gb=1), project="<img src=x onerror=alert(1)>")
    look.find_element(By.CSS_SELECTOR, "nav a[href='#/requests']").click()
    until(look, lambda: look.find_elements(By.CSS_SELECTOR, f"main a[href='#/instance/{uuid}']"))[0].click()
    until(look, lambda: "No valid host" in text(look, ".funnel"))
    assert "short of MEMORY_MB" in text(look, ".funnel ol")
    assert len(look.find_elements(By.CSS_SELECTOR, ".funnel polygon.after")) >= 2
    assert "<img src=x onerror=alert(1)>" in text(look, "main")
    assert not look.find_elements(By.CSS_SELECTOR, "main img")

    buttons = {button.text: button for button in look.find_elements(By.CSS_SELECTOR, "main button")}
    buttons["Choose it on the map"].click()
    until(look, lambda: "Choose a host" in text(look, ".banner"))
    # The middle of the canvas is empty: the first host of the map is at its left.
    canvas = look.find_element(By.TAG_NAME, "canvas")
    webdriver.ActionChains(look).move_to_element_with_offset(
        canvas, 12 - canvas.size["width"] // 2, 34 - canvas.size["height"] // 2
    ).click().perform()
    until(look, lambda: "MEMORY_MB" in text(look, "#panel .verdict"))


def test_if_hosts_cannot_be_read_the_page_shows_an_error_and_still_lists_requests(
    look: Any, page: tuple[str, RunningCloud]
) -> None:
    _url, cloud = page
    uuid = order(cloud)
    # Chromium blocks all requests for hosts.
    look.execute_cdp_cmd("Network.enable", {})
    look.execute_cdp_cmd("Network.setBlockedURLs", {"urls": ["*/api/hosts*"]})
    try:
        until(look, lambda: "cannot be reached" in text(look, "#fault"))
        look.find_element(By.TAG_NAME, "body").send_keys("2")
        until(look, lambda: look.find_elements(By.CSS_SELECTOR, f"main a[href='#/instance/{uuid}']"))
    finally:
        look.execute_cdp_cmd("Network.setBlockedURLs", {"urls": []})
    until(look, lambda: not look.find_element(By.ID, "fault").is_displayed())
    # The browser logs each failed request.
    assert all("ERR_BLOCKED" in entry["message"] for entry in look.get_log("browser"))


def test_a_button_starts_an_audit_and_the_page_shows_its_result(look: Any, page: tuple[str, RunningCloud]) -> None:
    _url, cloud = page
    add_to_used(cloud, 1)
    look.find_element(By.TAG_NAME, "body").send_keys("4")
    until(look, lambda: look.find_elements(By.CSS_SELECTOR, "main section > button"))[0].click()
    until(look, lambda: "nothing found" in text(look, "main") or "findings" in text(look, "main"))
    add_to_used(cloud, -1)
    assert "drifted" in text(look, "main tbody")
    # A provider has no page.
    assert not look.find_elements(By.CSS_SELECTOR, "main tbody a[href^='#/instance/']")


def add_to_used(cloud: RunningCloud, amount: int) -> None:
    statement = inventories.update().values(used=inventories.c.used + amount)
    cloud.database.write(lambda connection: connection.execute(statement))


def test_an_operation_of_a_request_is_not_a_link_to_an_instance(look: Any, page: tuple[str, RunningCloud]) -> None:
    _url, cloud = page
    cloud.stop_service("scheduler1")
    try:
        order(cloud)
        look.find_element(By.TAG_NAME, "body").send_keys("3")
        row = "//main//tbody/tr[contains(., 'super conductor')]"
        until(look, lambda: look.find_elements(By.XPATH, row))
        assert not look.find_elements(By.XPATH, f"{row}//a")
    finally:
        cloud.add(
            "scheduler1", SchedulerService(cloud.configuration(scheduler={"serve_placement": False}), "scheduler1")
        )


@pytest.mark.parametrize("address", ["#/hosts/%", "#/%E0/x", "#/instance/%zz"])
def test_an_address_that_is_not_encoded_properly_leaves_the_page_working(
    look: Any, page: tuple[str, RunningCloud], address: str
) -> None:
    url, _cloud = page
    look.get("about:blank")
    look.get(f"{url}{address}")
    until(look, lambda: "6 of 6" in text(look, "#totals"))
    look.find_element(By.TAG_NAME, "body").send_keys("3")
    until(look, lambda: "Operations" in text(look, "main"))
    # The browser logs a refused request for an instance.
    assert all("400" in entry["message"] for entry in look.get_log("browser"))


def pretend(browser: Any, answers: dict[str, Any]) -> None:
    """Let the page get these documents, by the last part of the path, instead of the answers of its server."""
    browser.execute_script(
        """
        window.pretended = arguments[0];
        window.fetched ??= window.fetch;
        window.fetch = async (url, how) => {
          const { pathname, searchParams } = new URL(url);
          const name = pathname.split("/").pop();
          if (name === "hosts") window.since = searchParams.get("since");
          if (name === "host") window.asked = Object.fromEntries(searchParams);
          const known = window.pretended[name];
          return known ? new Response(JSON.stringify(known)) : window.fetched(url, how);
        };
        """,
        answers,
    )


def hosts_of(version: str, *hosts: tuple[str, str, int]) -> dict[str, Any]:
    """Return all hosts as the server describes them: for each its name, its node, and the number of its cell."""
    rows = [[row, name, node, cell, 0, 0, 0, 1, 0, 0, 0, [1], [4]] for row, (name, node, cell) in enumerate(hosts)]
    return {
        "hosts": {
            "version": version,
            "whole": True,
            "count": len(rows),
            "classes": ["VCPU"],
            "cells": _CELLS,
            "zones": ["nova"],
            "trait_sets": [[]],
            "aggregate_sets": [[]],
            "rows": rows,
        },
        "cell_names": dict(zip(_CELLS, ("cell1", "cell2"), strict=True)),
        "aggregate_names": {},
        "interval": 0.5,
    }


def shown(browser: Any) -> str:
    """Return the host on which the keyboard is, as the map tells a blind viewer."""
    return str(browser.find_element(By.ID, "map-said").get_attribute("textContent"))


def test_the_marks_on_the_map_stay_on_their_hosts_when_hosts_are_numbered_anew(look: Any) -> None:
    a, b, c = ("a", "a", 0), ("b", "b", 0), ("c", "c", 0)
    pretend(look, {"hosts": hosts_of("1", a, b, c), "host": _HOST})
    until(look, lambda: "3 of 3" in text(look, "#totals"))
    canvas = look.find_element(By.TAG_NAME, "canvas")
    canvas.send_keys(Keys.HOME, Keys.ARROW_RIGHT)
    assert shown(look).startswith("b,")
    canvas.send_keys(Keys.ENTER)
    until(look, lambda: text(look, "#panel h2") == "b")
    before = look.execute_script(_PICTURE, canvas)

    pretend(look, {"hosts": hosts_of("2", c, a, b), "host": _HOST})
    until(look, lambda: look.execute_script("return window.since") == "2")
    assert look.execute_script(_PICTURE, canvas) == before
    canvas.send_keys(Keys.ARROW_RIGHT)
    assert shown(look).startswith("c,")


def test_links_to_hosts_of_one_name_lead_to_the_host_that_they_are_about(look: Any) -> None:
    twins = hosts_of("1", ("ironic", "node1", 0), ("ironic", "node2", 0), ("ironic", "node1", 1))
    instance = {"uuid": _CELLS[0], "state": "active", "host": "ironic", "cell": "cell2", "cell_uuid": _CELLS[1]}
    held = {"claim_id": ids.derived("browser", "claim"), "consumer_type": "INSTANCE", "accepted_host": "x", "age": 1}
    first = {"number": 1, "host": "ironic", "state": "active", "created_at": 1, "updated_at": 1}
    life = {
        **instance,
        "size": "",
        "project": "",
        "created_at": 1,
        "updated_at": 1,
        "now": 1,
        "attempts": [first],
        **dict.fromkeys(("migrations", "operations"), ()),
        "claims": [{**held, "node": "node2", "at": {"host": "ironic", "node": "node2", "cell_uuid": _CELLS[0]}}],
    }
    pretend(look, {"hosts": twins, "host": _HOST, _CELLS[0]: life})
    until(look, lambda: "3 of 3" in text(look, "#totals"))
    assert opened_by(look, "main p a") == {"name": "ironic", "node": "node1", "cell": _CELLS[1]}
    assert opened_by(look, "main .timeline a") == {"name": "ironic", "node": "node1", "cell": _CELLS[1]}
    assert opened_by(look, "main table a") == {"name": "ironic", "node": "node2", "cell": _CELLS[0]}


def opened_by(browser: Any, link: str) -> Any:
    """Follow a link on the page of an instance, and return how the page then asks for the host that it shows."""
    browser.execute_script("location.hash = arguments[0]", f"#/instance/{_CELLS[0]}")
    until(browser, lambda: browser.find_elements(By.CSS_SELECTOR, link))[0].click()
    until(browser, lambda: browser.find_element(By.ID, "panel").is_displayed())
    # The page asks at once when the panel is opened.
    return browser.execute_script("return window.asked")


def opened(browser: Any, host: dict[str, Any]) -> None:
    """Open the panel of a host about which the server answers this."""
    pretend(browser, {"hosts": hosts_of("1", ("a", "a", 0)), "host": host})
    until(browser, lambda: "1 of 1" in text(browser, "#totals"))
    browser.execute_script("location.hash = '#/hosts/a'")
    until(browser, lambda: text(browser, "#panel h2") == "a")


def test_what_a_viewer_has_unfolded_stays_so_when_it_is_read_again(look: Any) -> None:
    opened(look, {**_HOST, "attributes": {"colour": "blue"}, "metadata": {"rack": ["1"]}})
    first, second = until(look, lambda: look.find_elements(By.CSS_SELECTOR, "#panel summary"))
    assert (first.text, second.text) == ("Metadata of its aggregates", "Attributes")
    second.click()
    look.execute_script("arguments[0].dataset.old = 1", second)
    until(look, lambda: not look.find_elements(By.CSS_SELECTOR, "#panel summary[data-old]"))
    assert [one.get_attribute("open") for one in look.find_elements(By.CSS_SELECTOR, "#panel details")] == [
        None,
        "true",
    ]
    assert "colour = blue" in text(look, "#panel")
    assert look.switch_to.active_element.text == "Attributes", "the keyboard is still there"


def test_an_answer_to_an_earlier_question_does_not_replace_that_to_the_last_one(look: Any) -> None:
    opened(look, _HOST)
    # The test sends the answers of the scheduler, in the order that it wants.
    look.execute_script(
        """
        const others = window.fetch;
        window.asked = new Map();
        window.fetch = (url, how) => {
          const { pathname, searchParams } = new URL(url);
          if (!pathname.endsWith("explain")) return others(url, how);
          return new Promise((answer) => window.asked.set(searchParams.get("vcpus"), answer));
        };
        """
    )
    vcpus = look.find_element(By.CSS_SELECTOR, "#panel input[name=vcpus]")
    for number in "12":
        vcpus.clear()
        vcpus.send_keys(number, Keys.ENTER)
    until(look, lambda: look.execute_script("return window.asked.size") == 2)
    for number in "21":
        answer = {"summary": f"about {number} VCPU", "hosts": 1, "filters": [], "chosen": None}
        look.execute_async_script(
            """
            const [number, text, done] = arguments;
            window.asked.get(number)(new Response(text));
            setTimeout(done);
            """,
            number,
            json.dumps(answer),
        )
    assert "about 2 VCPU" in text(look, "#panel .funnel")


def test_a_request_is_explained_at_a_host_that_cannot_be_read(look: Any) -> None:
    pretend(look, {"hosts": hosts_of("1", ("a", "a", 0))})
    until(look, lambda: "1 of 1" in text(look, "#totals"))
    look.execute_async_script(
        """
        const [uuid, explanation, done] = arguments;
        const others = window.fetch;
        window.fetch = async (url, how) => {
          if (url.pathname.endsWith("/explain")) return new Response(explanation);
          const refusal = '{"errors": [{"detail": "no host a"}]}';
          return url.pathname.endsWith("/host") ? new Response(refusal, { status: 404 }) : others(url, how);
        };
        import("/question.js").then(({ question }) => {
          question.uuid = uuid;
          location.hash = "#/hosts/a";
          done();
        });
        """,
        _CELLS[0],
        json.dumps({"summary": "", "hosts": 1, "filters": [], "chosen": None, "named_hosts": {"a": "is disabled"}}),
    )
    until(look, lambda: "is disabled" in text(look, "#panel .verdict"))
    until(look, lambda: text(look, "#fault") == "no host a")


def test_if_no_audit_begins_the_page_shows_why_and_still_the_findings_of_the_last_one(look: Any) -> None:
    finding = {"kind": "drifted", "subject": "p1", "instance": None, "detail": "VCPU"}
    done = {"state": "done", "findings": [finding], "unseen": {}, "began_at": 1, "ended_at": 3, "now": 4}
    pretend(look, {"audit": done})
    look.find_element(By.TAG_NAME, "body").send_keys("4")
    until(look, lambda: "drifted" in text(look, "main"))
    button = look.find_element(By.CSS_SELECTOR, "main section > button")
    button.click()
    until(look, lambda: "had just ended" in text(look, "main"))
    look.execute_script(
        """
        const others = window.fetch;
        window.fetch = async (url, how) => {
          const refusal = '{"errors": [{"detail": "not for you"}]}';
          return how.method === "POST" ? new Response(refusal, { status: 403 }) : others(url, how);
        };
        """
    )
    button.click()
    until(look, lambda: "not for you" in text(look, "main"))
    assert "drifted" in text(look, "main")


def test_a_server_that_never_answers_is_shown_as_away_and_asked_again(look: Any) -> None:
    look.execute_script(
        """
        window.fetched = window.fetch;
        AbortSignal.timeout = () => {
          const patience = new AbortController();
          window.lose = () => patience.abort();
          return patience.signal;
        };
        window.fetch = (url, { signal }) => new Promise((_, fail) => {
          window.waits = true;
          signal.addEventListener("abort", () => fail(signal.reason));
        });
        """
    )
    # Requests, which are one question at a time: each of the page's questions has its own patience.
    look.find_element(By.TAG_NAME, "body").send_keys("2")
    until(look, lambda: look.execute_script("return window.waits"))
    until(look, lambda: look.execute_script("window.lose()") or "cannot be reached" in text(look, "#fault"))
    look.execute_script("window.fetch = window.fetched")
    until(look, lambda: look.execute_script("window.lose()") or not text(look, "#fault"))


def test_the_chart_has_all_standard_classes_from_the_start(look: Any) -> None:
    until(look, lambda: all(name in text(look, "main .chart") for name in ("VCPU", "PCPU", "MEMORY_MB", "DISK_GB")))


def test_the_page_has_a_light_and_a_dark_theme_and_fits_a_phone(look: Any) -> None:
    def background() -> str:
        return str(look.find_element(By.TAG_NAME, "body").value_of_css_property("background-color"))

    dark = {"features": [{"name": "prefers-color-scheme", "value": "dark"}]}
    light = {"features": [{"name": "prefers-color-scheme", "value": "light"}]}
    look.execute_cdp_cmd("Emulation.setEmulatedMedia", light)
    assert background() == _LIGHT
    look.execute_cdp_cmd("Emulation.setEmulatedMedia", dark)
    assert background() == _DARK
    look.find_element(By.ID, "theme").click()
    assert background() == _LIGHT, "the chosen theme overrides the theme of the system"

    phone = {"width": 390, "height": 844, "deviceScaleFactor": 2, "mobile": True}
    look.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", phone)
    try:
        for key in "1234":
            look.find_element(By.TAG_NAME, "body").send_keys(key)
            until(look, lambda: look.find_element(By.CSS_SELECTOR, "main section").is_displayed())
            assert look.execute_script("return document.documentElement.scrollWidth") <= 390
    finally:
        look.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_a_user_without_the_role_is_asked_for_another_token(look: Any, page: tuple[str, RunningCloud]) -> None:
    url, _cloud = page
    look.execute_script("sessionStorage.clear()")
    look.get(url)
    until(look, lambda: look.find_element(By.ID, "token").is_displayed())
    look.find_element(By.ID, "token").send_keys("somebody", Keys.ENTER)
    until(look, lambda: "does not let this token look" in text(look, "#login-why"))
    look.find_element(By.ID, "token").send_keys("admin", Keys.ENTER)
    until(look, lambda: "6 of 6" in text(look, "#totals"))
    # The browser logs the refused requests.
    refused = [entry["message"] for entry in look.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("403" in message for message in refused)


def test_a_user_who_may_only_read_is_told_so_by_the_audit_button_and_stays_logged_in(
    look: Any, page: tuple[str, RunningCloud]
) -> None:
    _url, cloud = page
    uuid = order(cloud)
    look.execute_script("sessionStorage.setItem('moorage.token', 'looker')")
    look.find_element(By.TAG_NAME, "body").send_keys("4")
    until(look, lambda: look.find_elements(By.CSS_SELECTOR, "main section > button"))[0].click()
    until(look, lambda: "dashboard:audit" in text(look, "main p.bad"))
    assert not look.find_element(By.ID, "token").is_displayed()
    look.find_element(By.TAG_NAME, "body").send_keys("2")
    until(look, lambda: look.find_elements(By.CSS_SELECTOR, f"main a[href='#/instance/{uuid}']"))
    # The browser logs the refused request.
    refused = [entry["message"] for entry in look.get_log("browser") if entry["level"] == "SEVERE"]
    assert all("403" in message for message in refused)


def test_a_token_that_no_request_can_carry_is_asked_for_again(look: Any) -> None:
    look.execute_script("sessionStorage.setItem('moorage.token', 'admin\u2026')")
    until(look, lambda: "not allowed" in text(look, "#login-why"))
    look.find_element(By.ID, "token").send_keys("admin", Keys.ENTER)
    until(look, lambda: not look.find_element(By.ID, "token").is_displayed())
    until(look, lambda: "6 of 6" in text(look, "#totals"))
