"""Test the file of a reshape: all its faults are reported at once with their lines, before any request is sent."""

import textwrap
from pathlib import Path

import pytest

from moorage.model import ChildProvider, InventoryFields, MoveInstruction, Reallocation
from placement_store.commands import reshape_file
from placement_store.commands.reshape_file import MalformedFile

SAMPLE = Path(__file__).parents[3] / "etc" / "moorage" / "reshape.yaml.sample"
CONSUMER = "9f1f2f0e-6ad8-4f4b-9d1c-2f1f7a4f6e01"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "fleet.yaml"


def faults(file: Path, text: str) -> list[str]:
    """Return the line and the reason of each fault of a malformed file."""
    file.write_text(textwrap.dedent(text))
    with pytest.raises(MalformedFile) as malformed:
        reshape_file.read(file)
    assert all(fault.path.startswith(str(file)) for fault in malformed.value.faults)
    return [f"{fault.path.removeprefix(str(file)).lstrip(':')} {fault.reason}" for fault in malformed.value.faults]


GOOD = """\
reshape:
  - instructions:
      - from_resource_provider: compute1
        moved_resources: {VGPU: 4}
        to_resource_provider: compute1_gpu0
    providers:
      - name: compute1_gpu0
        parent: compute1
        inventories: {VGPU: {max_unit: 4}}
        traits: [HW_GPU_API_VULKAN]
    allocations:
      - consumer_uuid: 9f1f2f0e-6ad8-4f4b-9d1c-2f1f7a4f6e01
        from_resource_provider: compute1
        to_resource_provider: compute1_gpu0
        resources: {VGPU: 1}
"""


def test_a_file_has_instructions_new_providers_and_allocations(file: Path) -> None:
    file.write_text(GOOD)
    [entry] = reshape_file.read(file)
    assert (entry.line, entry.host) == (2, "compute1")
    assert entry.reshape.instructions == (
        MoveInstruction(
            from_resource_provider="compute1", moved_resources={"VGPU": 4}, to_resource_provider="compute1_gpu0"
        ),
    )
    assert entry.reshape.providers == (
        ChildProvider(
            name="compute1_gpu0",
            parent="compute1",
            inventories={"VGPU": InventoryFields(max_unit=4)},
            traits=("HW_GPU_API_VULKAN",),
        ),
    )
    assert entry.reshape.allocations == (
        Reallocation(
            consumer_uuid=CONSUMER,
            from_resource_provider="compute1",
            to_resource_provider="compute1_gpu0",
            resources={"VGPU": 1},
        ),
    )


def test_the_sample_file_is_valid() -> None:
    assert len(reshape_file.read(SAMPLE)) == 2


def test_a_file_may_be_json(file: Path) -> None:
    file.write_text(
        '{"reshape": [{"instructions": [{"from_resource_provider": "a", "moved_resources": {"VGPU": 1},\n'
        '  "to_resource_provider": "b"}]}]}'
    )
    assert [entry.host for entry in reshape_file.read(file)] == ["a"]


@pytest.mark.parametrize(
    ("wrong", "instead_of", "reported"),
    [
        ("VGPU: 0", "VGPU: 4}\n        to", "4 Expected `int` >= 1"),
        ("VGPU: many", "VGPU: 4}\n        to", "4 Expected `int`, got `str`"),
        ("vgpu: 4", "VGPU: 4}\n        to", "4 Expected 1 to 255 capital letters"),
        ("max_unit: -1", "max_unit: 4", "9 Expected `int` >= 1"),
        ("maximum: 4", "max_unit: 4", "9 unknown field 'maximum'"),
        ("paren: compute1", "parent: compute1", "7 Object missing required field `parent`"),
        ("trait: [", "traits: [", "10 unknown field 'trait'"),
        ("consumer_uuid: 12", "consumer_uuid: 9f1f2f0e-6ad8-4f4b-9d1c-2f1f7a4f6e01", "12 Expected `str`, got `int`"),
        ("  - instruction:", "  - instructions:", "2 Object missing required field `instructions`"),
        ("reshapes:", "reshape:", "1 Object missing required field `reshape`"),
        ("VGPU: 4, VGPU: 2", "VGPU: 4}\n        to", "4 the key 'VGPU' stands here a second time"),
        ("VGPU: [4", "VGPU: 4}\n        to", "4 "),
        ("\tparent: compute1", "        parent: compute1", "8 found character '\\t' that cannot start any token"),
        ("parent: compute\x00", "parent: compute1", "8 the character '\\x00' may not stand in YAML"),
        ("VGPU: 2020-99-99", "VGPU: 4}\n        to", "4 '2020-99-99' is not a value of the type timestamp"),
        ("parent: !!bool maybe", "parent: compute1", "8 'maybe' is not a value of the type bool"),
        ("parent: !!timestamp now", "parent: compute1", "8 'now' is not a value of the type timestamp"),
        ("parent: !!int ''", "parent: compute1", "8 '' is not a value of the type int"),
    ],
)
def test_a_fault_is_reported_with_its_line(file: Path, wrong: str, instead_of: str, reported: str) -> None:
    rest = instead_of.removeprefix("VGPU: 4") if instead_of.startswith("VGPU") else ""
    assert instead_of in GOOD
    [fault] = faults(file, GOOD.replace(instead_of, wrong + rest, 1))
    assert fault.startswith(reported)


def test_a_fault_deep_in_a_mapping_is_reported_with_the_line_of_its_key(file: Path) -> None:
    [fault] = faults(
        file,
        """\
        reshape:
          - instructions:
              - from_resource_provider: a
                moved_resources:
                  VCPU: 4
                  MEMORY_MB: 1024
                  VGPU: none
                to_resource_provider: b
        """,
    )
    assert fault == "7 Expected `int`, got `str` - at reshape[0].instructions[0].moved_resources.VGPU"


def test_every_malformed_entry_is_reported(file: Path) -> None:
    found = faults(
        file,
        """\
        reshape:
          - instructions:
              - {from_resource_provider: a, moved_resources: {VGPU: 1}, to_resource_provider: b}
          - instructions: []
          - instructions:
              - {from_resource_provider: c, moved_resources: {}, to_resource_provider: d}
          - 7
        """,
    )
    assert [fault.split()[0] for fault in found] == ["4", "6", "7"]


def test_two_entries_for_one_tree_are_refused(file: Path) -> None:
    move = "  - instructions: [{from_resource_provider: %s, moved_resources: {VGPU: 1}, to_resource_provider: %s}]\n"
    [fault] = faults(file, "reshape:\n" + move % ("a", "b") + move % ("c", "d") + move % ("b", "e"))
    assert fault == "4 the entry of line 2 is about b, too: use one entry per tree"


@pytest.mark.parametrize(
    ("text", "reported"),
    [
        ("", "1 the file is empty"),
        ("# nothing\n", "1 the file is empty"),
        ("[]", "1 Expected `object`, got `array`"),
        ("reshape: []", "1 Expected `array` of length >= 1"),
        ("reshape: &a [*a]", "1 this refers to itself"),
        (f"reshape: {'[' * 2000}{']' * 2000}", "1 it is nested too deeply"),
        ("a: 1\n---\nb: 2\n", "2 but found another document"),
        ("reshape: !!python/object:os.system {}", "1 could not determine a constructor"),
        ("\nreshape: !!set {a, b}", "2 could not determine a constructor"),
    ],
)
def test_a_file_that_is_not_a_reshape_is_refused(file: Path, text: str, reported: str) -> None:
    assert faults(file, text)[0].startswith(reported)


def test_a_file_that_cannot_be_read_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="No such file"):
        reshape_file.read(file)
    with pytest.raises(MalformedFile, match="Is a directory"):
        reshape_file.read(tmp_path)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(MalformedFile, match="not text in UTF-8"):
        reshape_file.read(file)


def test_a_number_that_is_not_finite_is_reported_with_its_line_for_a_class_of_any_length(file: Path) -> None:
    name = "CUSTOM_" + 248 * "X"
    text = GOOD.replace("{VGPU: {max_unit: 4}}", f"{{{name}: {{allocation_ratio: .inf}}}}")
    assert "9 " in faults(file, text)[0]
