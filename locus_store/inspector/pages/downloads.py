"""Downloads: the whole of what pages show cut."""

from __future__ import annotations

from typing import TYPE_CHECKING

from locus_store.errors import NotFoundError
from locus_store.inspector.images import image
from locus_store.inspector.pages.versions import heavy, place, read
from locus_store.inspector.visits import Download
from locus_store.timeline.paths import parsed
from locus_store.values.encoding import encode

if TYPE_CHECKING:
    from locus_store.inspector.visits import Visit


async def state(visit: Visit) -> Download:
    """Return a version's state, or the value at a path, as JSON.

    Raises:
        NotFoundError: There is no such version or value.
    """
    seen = await read(visit, visit.query.optional("version"))
    found = place(seen, parsed(visit.query.text("path")))
    content = await heavy(visit, seen.size, lambda _: encode(found.value))
    return Download(f"{visit.thread}-{seen.version.checkpoint_id}.json", content)


async def picture(visit: Visit) -> Download:
    """Return an image that a state holds as a data URI.

    Raises:
        NotFoundError: There is none at the path.
    """
    seen = await read(visit, visit.query.optional("version"))
    found = place(seen, parsed(visit.query.required("path")))
    told = image(found.value) if isinstance(found.value, str) else None
    if told is None:
        raise NotFoundError("there is no PNG, JPEG, GIF or WebP image at this path")
    return Download("image", told[1], told[0], is_inline=True)
