"""The lifecycle policy of a bucket: the rule for idle threads, and rules that reach too far."""

from __future__ import annotations

from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Final

from locus_store.backends.documents.object_documents import HEADS, IDENTITY, SEGMENTS
from locus_store.backends.oci import failures
from locus_store.errors import ConflictError, InvalidArgumentError

if TYPE_CHECKING:
    from locus_store.backends.oci.client import BucketObjects

MOST_DAYS: Final = 36_500
READABLE: Final = "INFREQUENT_ACCESS"
"""An action that leaves objects readable."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A bucket's lifecycle policy."""

    rules: list[Any]
    """Of the SDK's models."""

    tag: str | None
    """``None``: the bucket has none."""


def rule_for(prefix: str, days: int) -> dict[str, Any]:
    """Return the rule that removes the heads of threads that were idle for ``days``.

    Each save replaces the head, so a rule never reaches a live thread. Its segments go with the
    next ``vacuum``.

    Raises:
        InvalidArgumentError: ``days`` is not valid.
    """
    if not 1 <= days <= MOST_DAYS:
        raise InvalidArgumentError(f"days={days} must be from 1 to {MOST_DAYS}")
    name = f"locus-store-{sha256(prefix.encode()).hexdigest()[:8]}"
    return {
        "name": name,
        "action": "DELETE",
        "target": "objects",
        "timeAmount": days,
        "timeUnit": "DAYS",
        "isEnabled": True,
        "objectNameFilter": {"inclusionPrefixes": [prefix + HEADS]},
    }


def read(objects: BucketObjects) -> Policy:
    """Return the policy of the bucket."""

    def get(client: Any) -> Policy:
        found = client.get_object_lifecycle_policy(objects.place.namespace, objects.place.bucket)
        return Policy(list(found.data.items or []), found.headers["etag"])

    found = objects.call("read the lifecycle policy", get, seen=(failures.MISSING,))
    return Policy([], None) if isinstance(found, int) else found


def write(objects: BucketObjects, rule: dict[str, Any]) -> int:
    """Add the rule to the policy, or replace the rule of its name; return how many others it has.

    A policy is only replaced whole, so the put is refused if it changed after it was read.

    Raises:
        ConflictError: The policy was changed meanwhile; nothing was written.
    """
    import oci  # noqa: PLC0415  (of an extra, and slow to import)

    models, policy = oci.object_storage.models, read(objects)
    others = [it for it in policy.rules if it.name != rule["name"]]
    ours = models.ObjectLifecycleRule(
        name=rule["name"],
        action=rule["action"],
        target=rule["target"],
        time_amount=rule["timeAmount"],
        time_unit=rule["timeUnit"],
        is_enabled=rule["isEnabled"],
        object_name_filter=models.ObjectNameFilter(
            inclusion_prefixes=rule["objectNameFilter"]["inclusionPrefixes"]
        ),
    )
    details = models.PutObjectLifecyclePolicyDetails(items=[*others, ours])
    condition = {"if_none_match": "*"} if policy.tag is None else {"if_match": policy.tag}

    def put(client: Any) -> None:
        place = objects.place
        client.put_object_lifecycle_policy(place.namespace, place.bucket, details, **condition)

    if isinstance(objects.call("write the policy", put, seen=failures.CONFLICTS), int):
        raise ConflictError(
            f"the lifecycle policy of {objects.place} was changed meanwhile; nothing was written. "
            "Run the command again"
        )
    return len(others)


def reaching(policy: Policy, prefix: str) -> list[str]:
    """Return the names of the rules that remove or archive what only ``vacuum`` may remove."""
    kept = prefix + SEGMENTS, prefix + IDENTITY
    return [
        it.name
        for it in policy.rules
        if it.is_enabled and it.action != READABLE and it.target in {None, "objects"}
        if any(_reaches(it.object_name_filter, name) for name in kept)
    ]


def _reaches(names: Any, ours: str) -> bool:
    """Return whether a filter may match names that begin with ``ours``."""
    if names is None:
        return True
    if any(fnmatchcase(ours, it) for it in names.exclusion_patterns or ()):
        return False
    prefixes, patterns = names.inclusion_prefixes or (), names.inclusion_patterns or ()
    if not prefixes and not patterns:
        return True
    is_below = any(ours.startswith(it) or it.startswith(ours) for it in prefixes)
    return is_below or any(fnmatchcase(ours + "x", it) or ours in it for it in patterns)
