"""The lifecycle policy of a bucket: the rule for idle threads, and rules that reach too far."""

from __future__ import annotations

import json
from dataclasses import dataclass
from fnmatch import fnmatchcase
from hashlib import sha256
from typing import Any, Final

from locus_store.backends.documents.objects import HEADS, IDENTITY, ITEMS, SEGMENTS, describe_clock
from locus_store.backends.oci.client import CONFLICTS, MISSING, BucketObjects
from locus_store.errors import ConflictError, ConnectionFailedError, InvalidArgumentError
from locus_store.types.facts import Fact

MOST_DAYS: Final = 36_500
READABLE: Final = "INFREQUENT_ACCESS"
"""An action that leaves objects readable."""


@dataclass(frozen=True, slots=True)
class Policy:
    """A bucket's lifecycle policy."""

    rules: list[dict[str, Any]]
    """As the service has them. The SDK's models would drop what a later service adds."""

    tag: str | None
    """``None``: the bucket has none."""


def make_rule(prefix: str, days: int) -> dict[str, Any]:
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
        found = _ask(client, objects, "GET", response_type="stream")
        return Policy(json.loads(found.data.content)["items"] or [], found.headers["etag"])

    found = objects.call("read the lifecycle policy", get, statuses=(MISSING,))
    return Policy([], None) if isinstance(found, int) else found


def write(objects: BucketObjects, rule: dict[str, Any]) -> int:
    """Add the rule to the policy, or replace the rule of its name; return how many others it has.

    A policy is only replaced whole, so the put is refused if it changed after it was read.

    Raises:
        ConflictError: The policy was changed meanwhile; nothing was written.
    """
    policy = read(objects)
    others = [it for it in policy.rules if it.get("name") != rule["name"]]
    condition = {"if-none-match": "*"} if policy.tag is None else {"if-match": policy.tag}

    def put(client: Any) -> None:
        _ask(client, objects, "PUT", condition, body={"items": [*others, rule]})

    if isinstance(objects.call("write the policy", put, statuses=CONFLICTS), int):
        raise ConflictError(
            f"the lifecycle policy of {objects.place} was changed meanwhile; nothing was written. "
            "Run the command again"
        )
    return len(others)


def _ask(
    client: Any, objects: BucketObjects, method: str, headers: Any = None, **options: Any
) -> Any:
    """Return the answer to a request about the policy, without the SDK's models."""
    place = objects.place
    return client.base_client.call_api(
        resource_path="/n/{namespaceName}/b/{bucketName}/l",
        method=method,
        path_params={"namespaceName": place.namespace, "bucketName": place.bucket},
        header_params={
            "accept": "application/json",
            "content-type": "application/json",
            **(headers or {}),
        },
        **options,
    )


def find_reaching_rules(policy: Policy, prefix: str) -> list[str]:
    """Return the names of the rules that remove or archive what only ``vacuum`` may remove."""
    kept = prefix + SEGMENTS, prefix + IDENTITY, prefix + ITEMS
    return [
        rule["name"]
        for rule in policy.rules
        if rule["isEnabled"]
        and rule["action"] != READABLE
        and rule.get("target") in {None, "objects"}
        if any(_may_match(rule.get("objectNameFilter"), name) for name in kept)
    ]


def _may_match(names: dict[str, Any] | None, ours: str) -> bool:
    """Return whether a filter may match names that begin with ``ours``."""
    if names is None:
        return True
    if any(fnmatchcase(ours, it) for it in names.get("exclusionPatterns") or ()):
        return False
    prefixes = names.get("inclusionPrefixes") or ()
    patterns = names.get("inclusionPatterns") or ()
    if not prefixes and not patterns:
        return True
    is_below = any(ours.startswith(it) or it.startswith(ours) for it in prefixes)
    return is_below or any(fnmatchcase(ours + "x", it) or ours in it for it in patterns)


def collect_facts(objects: BucketObjects, prefix: str) -> list[Fact]:
    """Return the numbers of objects, and what is to be done about clock and rules."""
    heads, segments = (sum(1 for _ in objects.list(prefix + it)) for it in (HEADS, SEGMENTS))
    count = Fact("threads", f"{heads:,} (a head each; {segments:,} segments)")
    clock = describe_clock(objects, "set it; the service refuses requests beyond 300 s")
    return [count, clock, *_describe_rules(objects, prefix)]


_NO_RULE: Final = "no rule, or the policies do not allow it to be read"


def _describe_rules(objects: BucketObjects, prefix: str) -> list[Fact]:
    try:
        policy = read(objects)
    except ConnectionFailedError as exc:
        return [Fact("lifecycle", f"the policy cannot be read: {exc}")]
    found = find_reaching_rules(policy, prefix)
    if not found:
        name = make_rule(prefix, 1)["name"]
        ours = [it for it in policy.rules if it.get("name") == name]
        text = f"idle threads are removed after {ours[0]['timeAmount']} days" if ours else _NO_RULE
        return [Fact("lifecycle", text, "ok" if ours else "info")]
    remedy = "exclude these names: `locus-store oci lifecycle` prints a rule for heads only"
    text = f"rule {', '.join(map(repr, found))} reaches segments of live threads"
    return [Fact("lifecycle", text, "fail", remedy)]
