"""The short phrases in the details of errors that published clients and Placement's public API tests look for.

They are part of the interface, as field names are. The sentence after a phrase is the store's own text: RPC and logs
show only that text. The tests compare the phrases in the answers of Placement and of this server, by these templates.
"""

from collections import defaultdict
from collections.abc import Iterable
from enum import Enum
from typing import Any


class Phrase(Enum):
    """A phrase: the template for an error's data, and the source that looks for it.

    A name that ends with ``.yaml`` is a file of Placement's public API tests (gabbits).
    """

    def __init__(self, template: str, source: str) -> None:
        self.template = template
        self.source = source

    def about(self, **data: Any) -> str:
        """Fill in the data; missing data is shown as a question mark."""
        return self.template.format_map(defaultdict(lambda: "?", data))

    # Form.
    NOT_FOUND = "The resource could not be found.", "basic-http.yaml"
    MALFORMED_JSON = "Malformed JSON:", "aggregate.yaml"
    INVALID_JSON = "JSON does not validate:", "aggregate.yaml"
    INVALID_QUERY = "Invalid query string parameters:", "resource-provider-bug-1779818.yaml"
    FAILED_RULE = "Failed validating '{rule}' in schema", "inventory.yaml"
    ONLY_JSON = "Only application/json is provided", "basic-http.yaml"
    MEDIA_TYPE = "The media type {sent} is not supported, use application/json", "basic-http.yaml"
    METHOD = "not allowed for this resource", "basic-http.yaml"
    NEEDS_CONTENT_TYPE = "content-type header required", "basic-http.yaml"
    BAD_LENGTH = "content-length header must be an integer", "basic-http.yaml"
    BAD_VERSION = "Invalid microversion: {reason}", "microversion.yaml"

    # Providers.
    NO_PROVIDER = "No resource provider with uuid {name} found", "resource-provider.yaml; osc-placement"
    NO_PROVIDER_TO_DELETE = "No resource provider with uuid {name} found for delete", "resource-provider.yaml"
    PROVIDER_NAME_TAKEN = "Conflicting resource provider name: {name} already exists", "Nova's report client"
    PROVIDER_UUID_TAKEN = "Conflicting resource provider uuid: {name} already exists", "resource-provider.yaml"
    PROVIDER_TAKEN = "Conflicting resource provider {name} already exists", "resource-provider.yaml"
    PROVIDER_NOT_CREATED = 'Unable to create resource provider "{name}", {uuid}', "resource-provider.yaml"
    PROVIDER_NOT_SAVED = "Unable to save resource provider {uuid}", "resource-provider.yaml"
    OWN_PARENT = "parent provider UUID cannot be same as UUID", "resource-provider.yaml"
    NO_PARENT = "parent provider UUID does not exist", "resource-provider.yaml"
    REPARENTING = "re-parenting a provider is not currently allowed", "resource-provider.yaml"
    UNPARENTING = "un-parenting a provider is not currently allowed", "resource-provider.yaml"
    LOOP = "creating loop in the provider tree is not allowed.", "resource-provider.yaml"
    PROVIDER_IN_USE = (
        "Unable to delete resource provider {provider_uuid}: Resource provider has allocations.",
        "with-allocations.yaml; Nova's report client",
    )
    PROVIDER_HAS_CHILDREN = (
        "Unable to delete parent resource provider {provider_uuid}: It has child resource providers.",
        "resource-provider.yaml",
    )

    # Generations.
    PROVIDER_GENERATION = "resource provider generation conflict", "inventory.yaml; Nova's report client"
    UPDATE_GENERATION = (
        "Resource provider's generation already changed. Please update the generation and try again.",
        "traits.yaml; neutron-lib",
    )
    RESHAPED_GENERATION = "actual: {found}, given: {named}", "reshaper.yaml"
    CONSUMER_GENERATION = "consumer generation conflict - expected {found} but got {named}", "Nova's report client"
    UPDATE_CONFLICT = "update conflict", "inventory.yaml"
    CREATE_CONFLICT = "Update conflict", "inventory.yaml"

    # Inventories and classes.
    NO_CLASS = "No such resource class {name}", "allocations.yaml; osc-placement"
    UNKNOWN_CLASS = "Unknown resource class in inventory", "inventory.yaml"
    CLASS_TAKEN = "Conflicting resource class already exists: {name}", "resource-classes.yaml"
    NEW_NAME_TAKEN = "Resource class already exists: {name}", "resource-classes.yaml"
    STANDARD_CLASS = "Cannot delete standard resource class {name}", "resource-classes.yaml"
    STANDARD_CLASS_RENAMED = "Cannot update standard resource class {name}", "resource-classes.yaml"
    CLASS_IN_USE = (
        "Error in delete resource class: Cannot delete resource class {name}. Class is in use in inventory",
        "resource-class-in-use.yaml",
    )
    NO_INVENTORY = "No inventory of class {name} for {provider_uuid}", "inventory.yaml"
    NO_INVENTORY_TO_DELETE = "No inventory of class {name} found for delete", "inventory.yaml"
    NO_INVENTORY_RECORD = "No inventory record with resource class", "inventory.yaml"
    INVENTORY_NOT_CREATED = "Unable to create inventory for resource provider {uuid}", "inventory.yaml"
    INVENTORY_NOT_UPDATED = "Unable to update inventory for resource provider {uuid}", "inventory.yaml"
    INVENTORY_IN_USE = (
        "Inventory for '{resource_class}' on resource provider '{provider_uuid}' in use",
        "with-allocations.yaml; Nova's report client",
    )
    RESERVED_TOO_MUCH = "greater than total", "inventory.yaml"
    RESERVED_ALL = "greater than or equal to total", "inventory.yaml"

    # Traits.
    NO_TRAIT = "No such trait(s): {name}", "allocation-candidates.yaml"
    NO_SUCH_TRAIT = "No such trait {name}", "traits.yaml"
    INVALID_TRAIT = "The trait is invalid.", "traits.yaml"
    STANDARD_TRAIT = "Cannot delete standard trait {name}", "traits.yaml"
    TRAIT_IN_USE = "The trait {name} is in use by a resource provider.", "traits.yaml"
    BAD_NAME_PARAMETER = "Badly formatted name parameter.", "traits.yaml"
    BAD_ASSOCIATED = 'The query parameter "associated" only accepts "true" or "false"', "traits.yaml"

    # Allocations.
    BAD_CONSUMER = "Malformed consumer_uuid", "allocations.yaml"
    NO_ALLOCATIONS = "No allocations for consumer '{name}'", "allocations.yaml"
    NO_PROVIDER_OF_ALLOCATION = "Allocation for resource provider '{name}' that does not exist", "allocations.yaml"
    NOT_ALLOCATED = "Unable to allocate inventory", "allocations.yaml; Nova's report client"
    NOT_ALLOCATED_TO = "Unable to allocate inventory for consumer {consumer_uuid}", "allocations.yaml"
    NO_INVENTORY_TO_ALLOCATE = (
        "Inventory for '{resource_class}' on resource provider '{provider_uuid}' invalid",
        "allocations-post.yaml",
    )
    OVER_CAPACITY = "The requested amount would exceed the capacity", "allocations-bug-1778591.yaml"
    AGAINST_UNITS = "The requested amount would violate inventory constraints", "Nova's report client"
    NO_RESHAPED_PROVIDER = "in inventories not found", "reshaper.yaml"

    # Queries.
    BAD_RESOURCES = (
        "Badly formed resources parameter. Expected resources query string parameter in form:",
        "resource-provider-resources-query.yaml",
    )
    GOT = "Got: {sent}", "resource-provider-resources-query.yaml"
    BAD_AMOUNT = (
        "Requested resource {name} expected positive integer amount.",
        "resource-provider-resources-query.yaml",
    )
    SMALL_AMOUNT = "Requested resource {name} requires amount >= 1.", "resource-provider-resources-query.yaml"
    BAD_CLASS = "Invalid resource class in resources parameter", "allocation-candidates.yaml"
    BAD_REQUIRED = "Expected 'required' parameter value of the form: {example}.", "allocation-candidates.yaml"
    ANY_TRAITS_TOO_OLD = (
        "The format 'in:HW_CPU_X86_VMX,CUSTOM_MAGIC' only supported since microversion 1.39.",
        "allocation-candidates-any-traits.yaml",
    )
    BAD_MEMBER_OF = "Expected 'member_of' parameter to contain valid UUID(s).", "allocation-candidates-member-of.yaml"
    MEMBER_OF_WITHOUT_IN = (
        (
            "Multiple values for 'member_of' must be prefixed with the 'in:' or '!in:' keyword "
            "using the valid microversion."
        ),
        "allocation-candidates-member-of.yaml",
    )
    ONE_MEMBER_OF = "Multiple member_of{suffix} parameters are not supported", "allocation-candidates-member-of.yaml"
    FORBIDDEN_MEMBER_OF = (
        "Forbidden member_of{suffix} parameters are not supported in the specified microversion",
        "allocation-candidates-member-of.yaml",
    )
    BAD_IN_TREE = "Expected 'in_tree' parameter to be a format of uuid", "allocation-candidates.yaml"
    ONE_ROOT_REQUIRED = (
        "Query parameter 'root_required' may be specified only once.",
        "allocation-candidates-root-required.yaml",
    )
    ROOT_CONFLICT = (
        "Conflicting required and forbidden traits found in root_required: {names}",
        "allocation-candidates-root-required.yaml",
    )
    TRAIT_CONFLICT = (
        "Conflicting required and forbidden traits found in the following traits keys: {names}",
        "allocation-candidates.yaml",
    )
    EMPTY_SUFFIX = (
        "Empty string (unsuffixed group) can not be specified in `same_subtree`",
        "granular-same-subtree.yaml",
    )
    NOTHING_ASKED = "There must be at least one resources or resources[$S] parameter.", "granular-same-subtree.yaml"
    NOTHING_OF_SUFFIX = (
        "Resourceless suffixed group request should be specified in `same_subtree` query param",
        "granular-same-subtree.yaml",
    )
    UNKNOWN_SUFFIX = "Real suffixes should be specified in `same_subtree`:", "granular-same-subtree.yaml"
    ORPHANED_TRAITS = (
        "All traits parameters must be associated with resources. Found the following orphaned traits keys: {names}",
        "granular.yaml",
    )
    ORPHANED_MEMBER_OF = (
        (
            "All member_of parameters must be associated with resources. "
            "Found the following orphaned member_of keys: {names}"
        ),
        "granular.yaml",
    )
    GROUP_WITHOUT_RESOURCES = "All request groups must specify resources.", "allocation-candidates.yaml"
    NO_GROUP = "At least one request group (`resources` or `resources{{$S}}`) is required.", "granular.yaml"
    NEEDS_GROUP_POLICY = (
        'The "group_policy" parameter is required when specifying more than one "resources{{N}}" parameter.',
        "granular.yaml",
    )


def before(sentence: str, phrases: Iterable[Phrase], **data: Any) -> str:
    """Put the phrases, filled in with these data, before a sentence."""
    shown = [phrase.about(**data) for phrase in phrases]
    # A colon leads from a phrase to the next one; the last one is a sentence of its own.
    ends = [":"] * (len(shown) - 1) + ["."]
    parts = [one if one.endswith((".", ":")) else one + end for one, end in zip(shown, ends, strict=False)]
    return " ".join([*parts, sentence])
