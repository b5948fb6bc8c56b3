"""Draw a request of each operation: mostly a meaningful one."""

from collections.abc import Callable, Mapping

from hypothesis import strategies as st

from support.http.differential.world import (
    AGGREGATES,
    CONSUMERS,
    NOBODY,
    PROJECTS,
    PROVIDERS,
    TYPES,
    USERS,
    PartPicker,
    Request,
)


def create_provider(pick: PartPicker) -> Request:
    number = pick.draw(st.integers(0, len(PROVIDERS) - 1))
    minor = pick.minor()
    body = {"name": f"name{number}", "uuid": PROVIDERS[number]}
    if minor >= 14 and pick.draw(st.booleans()):
        body["parent_provider_uuid"] = pick.one([*PROVIDERS, NOBODY, None])
    if pick.rarely(15):
        body["name"] = pick.one(["name0", "", "x" * 201, "a name", "ü"])
    return Request("POST", "/resource_providers", f"1.{minor}", body)


def update_provider(pick: PartPicker) -> Request:
    minor, uuid = pick.minor(), pick.provider()
    body = {"name": pick.one(["name0", "name1", "name8", "name9"])}
    if minor >= 14 and pick.draw(st.booleans()):
        body["parent_provider_uuid"] = pick.one([*PROVIDERS, NOBODY, None])
    return Request("PUT", f"/resource_providers/{uuid}", f"1.{minor}", body)


def of_provider(pick: PartPicker) -> Request:
    part = pick.one(["", "/inventories", "/usages", "/aggregates", "/traits", "/allocations"])
    path = f"/resource_providers/{pick.provider()}{part}"
    return Request("GET", path, f"1.{pick.minor()}")


def delete_of_provider(pick: PartPicker) -> Request:
    part = pick.one(["", "/inventories", "/traits", f"/inventories/{pick.resource_class()}"])
    return Request("DELETE", f"/resource_providers/{pick.provider()}{part}", f"1.{pick.minor()}")


def list_providers(pick: PartPicker) -> Request:
    minor = pick.minor(14)
    query: list[tuple[str, str]] = []
    for name in pick.some(["name", "uuid", "member_of", "resources", "in_tree", "required"], 0, 2):
        query += [(name, _value(pick, name, minor))] * (2 if pick.rarely(10) else 1)
    return Request("GET", "/resource_providers", f"1.{minor}", query=tuple(query))


def put_inventories(pick: PartPicker) -> Request:
    uuid = pick.provider()
    body = {"resource_provider_generation": pick.generation(uuid), "inventories": pick.inventories()}
    return Request("PUT", f"/resource_providers/{uuid}/inventories", f"1.{pick.minor()}", body)


def put_inventory(pick: PartPicker) -> Request:
    uuid = pick.provider()
    body = {**pick.inventory(), "resource_provider_generation": pick.generation(uuid)}
    path = f"/resource_providers/{uuid}/inventories/{pick.resource_class()}"
    return Request("PUT", path, f"1.{pick.minor()}", body)


def post_inventory(pick: PartPicker) -> Request:
    body = {**pick.inventory(), "resource_class": pick.resource_class()}
    return Request("POST", f"/resource_providers/{pick.provider()}/inventories", f"1.{pick.minor()}", body)


def get_inventory(pick: PartPicker) -> Request:
    path = f"/resource_providers/{pick.provider()}/inventories/{pick.resource_class()}"
    return Request("GET", path, f"1.{pick.minor()}")


def put_traits(pick: PartPicker) -> Request:
    uuid = pick.provider()
    held = [pick.trait() for _ in range(pick.draw(st.integers(0, 3)))]
    if not pick.rarely(10):
        held = list(dict.fromkeys(held))
    body = {"resource_provider_generation": pick.generation(uuid), "traits": held}
    return Request("PUT", f"/resource_providers/{uuid}/traits", f"1.{pick.minor(6)}", body)


def put_aggregates(pick: PartPicker) -> Request:
    uuid, minor = pick.provider(), pick.minor(1)
    wanted = pick.some([*AGGREGATES, *([AGGREGATES[0].replace("-", ""), "none"] if pick.rarely(20) else [])])
    body = {"resource_provider_generation": pick.generation(uuid), "aggregates": wanted} if minor >= 19 else wanted
    return Request("PUT", f"/resource_providers/{uuid}/aggregates", f"1.{minor}", body)


def put_allocations(pick: PartPicker) -> Request:
    uuid, minor = pick.one(CONSUMERS), pick.minor()
    body = pick.consumer(uuid, minor)
    if minor < 12:
        parts = body["allocations"].items()
        body["allocations"] = [{"resource_provider": {"uuid": u}, "resources": p["resources"]} for u, p in parts]
    if minor < 8:
        del body["project_id"], body["user_id"]
    path = "/allocations/" + ("not-a-uuid" if pick.rarely(40) else uuid)
    return Request("PUT", path, f"1.{minor}", body)


def post_allocations(pick: PartPicker) -> Request:
    minor = pick.minor(13)
    body = {uuid: pick.consumer(uuid, minor) for uuid in pick.some(CONSUMERS, 0 if pick.rarely(20) else 1)}
    return Request("POST", "/allocations", f"1.{minor}", body)


def of_consumer(pick: PartPicker) -> Request:
    uuid = "not-a-uuid" if pick.rarely(30) else pick.one([*CONSUMERS, NOBODY])
    return Request(pick.one(["GET", "GET", "DELETE"]), f"/allocations/{uuid}", f"1.{pick.minor()}")


def reshape(pick: PartPicker) -> Request:
    minor = pick.minor(30)
    inventories = {
        uuid: {"resource_provider_generation": pick.generation(uuid), "inventories": pick.inventories()}
        for uuid in pick.some([*PROVIDERS, *([NOBODY] if pick.rarely(10) else [])], 0 if pick.rarely(20) else 1)
    }
    allocations = {uuid: pick.consumer(uuid, max(minor, 28)) for uuid in pick.some(CONSUMERS, 0, 2)}
    return Request("POST", "/reshaper", f"1.{minor}", {"inventories": inventories, "allocations": allocations})


def usages(pick: PartPicker) -> Request:
    minor = pick.minor(9)
    query = [("project_id", pick.one([*PROJECTS, "nobody"]))]
    if pick.rarely(3):
        query.append(("user_id", pick.one(USERS)))
    if minor >= 38 and pick.rarely(2):
        query.append(("consumer_type", pick.one([*TYPES, "all", "unknown", "OTHER", "bad type"])))
    return Request("GET", "/usages", f"1.{minor}", query=tuple(query))


def names(pick: PartPicker) -> Request:
    minor = pick.minor(6)
    kind, own = pick.one([("resource_classes", ["CUSTOM_A", "CUSTOM_B"]), ("traits", ["CUSTOM_T", "CUSTOM_U"])])
    name = pick.one([*own, *own, "VCPU", "HW_CPU_X86_AVX2", "CUSTOM_", "custom_a", "CUSTOM_" + "A" * 249])
    method = pick.one(["PUT", "PUT", "GET", "DELETE"])
    body = {"name": pick.one(own)} if kind == "resource_classes" and method == "PUT" and minor < 7 else None
    return Request(method, f"/{kind}/{name}", f"1.{minor}", body)


def lists_of_names(pick: PartPicker) -> Request:
    minor = pick.minor(6)
    if pick.rarely(3):
        return Request("GET", "/resource_classes", f"1.{minor}")
    if pick.rarely(3):
        body = {"name": pick.one(["CUSTOM_A", "CUSTOM_B", "VCPU", "custom"])}
        return Request("POST", "/resource_classes", f"1.{minor}", body)
    values = {
        "name": [
            "in:CUSTOM_T,HW_CPU_X86_AVX2,CUSTOM_NONE",
            "startswith:CUSTOM",
            "startswith:",
            "in:",
            "bad",
            "bad:one",
        ],
        "associated": ["true", "FALSE", "maybe"],
        "other": ["1"],
    }
    named = pick.some(["name", "name", "associated", *(["other"] if pick.rarely() else [])], 0, 2)
    return Request("GET", "/traits", f"1.{minor}", query=tuple((name, pick.one(values[name])) for name in named))


def candidates(pick: PartPicker) -> Request:
    minor = pick.minor(10)
    query: list[tuple[str, str]] = []
    suffixes = ["", "1", "2"] if minor < 33 else ["", "_A", "_B"]
    for suffix in pick.some(suffixes, 1, 3) if minor >= 25 and pick.draw(st.booleans()) else [""]:
        if not pick.rarely(10):
            query.append((f"resources{suffix}", _value(pick, "resources", minor)))
        for name, since in {"required": 17, "member_of": 21, "in_tree": 31}.items():
            if pick.rarely(3 if minor >= since else 40):
                times = 2 if pick.rarely(5) else 1
                query += [(f"{name}{suffix}", _value(pick, name, minor)) for _ in range(times)]
    for name, since in {"limit": 16, "group_policy": 25, "root_required": 35, "same_subtree": 36}.items():
        usual = 2 if name == "group_policy" else 6
        if pick.rarely(usual if minor >= since else 40):
            query += [(name, _value(pick, name, minor)) for _ in range(2 if pick.rarely(8) else 1)]
    return Request("GET", "/allocation_candidates", f"1.{minor}", query=tuple(query))


def _value(pick: PartPicker, name: str, minor: int) -> str:
    """Draw the value of a query parameter: mostly a meaningful one."""
    if name == "resources":
        if pick.rarely(12):
            return str(pick.one(_BAD_RESOURCES))
        return ",".join(f"{n}:{amount}" for n, amount in pick.amounts(3).items())
    if name in ("required", "root_required"):
        if pick.rarely(12):
            return str(pick.one(_BAD_TRAITS))
        listed = [pick.trait() for _ in range(pick.draw(st.integers(1, 2)))]
        if minor >= 39 and name == "required" and pick.rarely(3):
            return "in:" + ",".join(listed)
        return ",".join(("!" if pick.rarely(3) and minor >= 22 else "") + one for one in listed)
    if name == "member_of":
        if pick.rarely(12):
            return str(pick.one(_BAD_AGGREGATES))
        text = pick.one([AGGREGATES[0], AGGREGATES[1], "in:" + ",".join(AGGREGATES), f"in:{AGGREGATES[0]}", NOBODY])
        return ("!" if minor >= 32 and pick.rarely(4) else "") + str(text)
    return str(pick.one(_VALUES[name]))


_BAD_RESOURCES = ["", " ", "VCPU", "VCPU:", ":1", "VCPU:0", "VCPU:-1", "VCPU:x", "VCPU:1,", "VCPU:1:1", "VCPU: 1",
                  " VCPU:1", "VCPU:1, MEMORY_MB:1", "VCPU:1,VCPU:2", "VCPU:99999999999", "VCPU:1.5",
                  "vcpu:1"]  # fmt: skip
_BAD_TRAITS = ["", " ", ",", "CUSTOM_T,", "!", "!CUSTOM_T", "!!CUSTOM_T", "in:CUSTOM_T", "in:", "in:!CUSTOM_T",
               "!in:CUSTOM_T", "CUSTOM_T, STORAGE_DISK_SSD", "custom_t", "CUSTOM_T,!CUSTOM_T"]  # fmt: skip
_BAD_AGGREGATES = ["", "in:", "none", "!", "!in:", f"{AGGREGATES[0]},{AGGREGATES[1]}", f"!{AGGREGATES[0]}",
                   f"in:!{AGGREGATES[0]}", f"!in:{AGGREGATES[0]},{AGGREGATES[1]}", AGGREGATES[0].upper()]  # fmt: skip
_VALUES: Mapping[str, list[str]] = {
    "name": ["name0", "name1", "none", ""],
    "uuid": [PROVIDERS[0], PROVIDERS[1], NOBODY, "none"],
    "in_tree": [*PROVIDERS, NOBODY, "none"],
    "limit": ["1", "2", "5", "1000", "0", "-1", "x", ""],
    "group_policy": ["none", "none", "isolate", "bad"],
    "same_subtree": ["_A,_B", "_A", "_B,_A", "", "_A,", "_X", "_A, _B"],
}


OPERATIONS: list[Callable[[PartPicker], Request]] = [
    *[create_provider, put_inventories, put_allocations, candidates] * 4,
    *[post_allocations, reshape, put_traits, put_aggregates, list_providers, names] * 2,
    update_provider, of_provider, delete_of_provider, put_inventory, post_inventory, get_inventory, of_consumer, usages,
    lists_of_names,
]  # fmt: skip
