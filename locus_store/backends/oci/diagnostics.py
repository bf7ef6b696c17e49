"""Facts about a bucket for ``locus-store doctor``: numbers, the clock and the lifecycle policy."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from locus_store.backends.documents.object_documents import HEADS, SEGMENTS
from locus_store.backends.oci import lifecycle
from locus_store.errors import ConnectionFailedError
from locus_store.types.facts import Fact

if TYPE_CHECKING:
    from locus_store.backends.oci.client import BucketObjects

_LARGE_SKEW: Final = timedelta(minutes=1)


def facts(objects: BucketObjects, prefix: str) -> list[Fact]:
    """Return the numbers of objects, and what is to be done about clock and rules."""
    heads, segments = (sum(1 for _ in objects.list(prefix + it)) for it in (HEADS, SEGMENTS))
    count = Fact("threads", f"{heads:,} (a head each; {segments:,} segments)")
    return [count, _clock(objects), *_rules(objects, prefix)]


NO_RULE: Final = "no rule, or the policies do not allow it to be read"


def _clock(objects: BucketObjects) -> Fact:
    skew = abs(objects.now() - datetime.now(UTC))
    told = f"differs from the service's by {skew.total_seconds():.0f} s"
    if skew < _LARGE_SKEW:
        return Fact("clock", told, "ok")
    return Fact("clock", told, "warn", "set it; the service refuses requests beyond 300 s")


def _rules(objects: BucketObjects, prefix: str) -> list[Fact]:
    try:
        policy = lifecycle.read(objects)
    except ConnectionFailedError as exc:
        return [Fact("lifecycle", f"the policy cannot be read: {exc}")]
    reaching = lifecycle.reaching(policy, prefix)
    if not reaching:
        name = lifecycle.rule_for(prefix, 1)["name"]
        ours = [it for it in policy.rules if it.get("name") == name]
        told = f"idle threads are removed after {ours[0]['timeAmount']} days" if ours else NO_RULE
        return [Fact("lifecycle", told, "ok" if ours else "info")]
    remedy = "exclude these names: `locus-store oci lifecycle` prints a rule for heads only"
    told = f"rule {', '.join(map(repr, reaching))} reaches segments of live threads"
    return [Fact("lifecycle", told, "fail", remedy)]
