"""The types of an archived thread's values, checked by pydantic, which is slow to import."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, ValidationError

from locus_store.errors import IntegrityError
from locus_store.types import ArchivedThread


class _Form(BaseModel):
    """Has pydantic look at every value's type. Built when it is used, which takes a while."""

    model_config = ConfigDict(strict=True, revalidate_instances="always", defer_build=True)

    thread: ArchivedThread


def require_types(thread: ArchivedThread) -> None:
    """Refuse values of other types than the records have; name the first."""
    try:
        _Form(thread=thread)
    except ValidationError as exc:
        first = exc.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"][1:]))
        raise IntegrityError(f"{where} of an archived thread: {first['msg']}") from exc
