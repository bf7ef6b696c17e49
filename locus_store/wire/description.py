"""The description that a service gives of itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from locus_store.types import CheckpointerCapabilities  # noqa: TC001  (forms evaluate it)
from locus_store.wire.calls import ANSWERS
from locus_store.wire.forms import Validator

SERVICE: Final = "locus-store"
"""The name of the service in the answer of ``/health``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Description:
    """The powers and limits of a service, for the caller who asks."""

    version: str
    """The version of locus-store."""

    capabilities: CheckpointerCapabilities
    has_store: bool
    dimension: int | None
    metric: str | None
    has_messages: bool
    rights: list[str]
    max_body: int
    """The longest body of a request in bytes."""


DESCRIPTION: Final = Validator(ANSWERS.of(Description), "the description of the service")
