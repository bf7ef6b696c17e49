"""States as frames: what changed between two versions, and versions from what changed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from locus_store.encoding import Json, encode, pack_frame
from locus_store.errors import IntegrityError
from locus_store.layout.diffing import Frame, diff
from locus_store.layout.folding import Folder, fold, fold_each, text_in, text_of
from locus_store.layout.shapes import Shape, measure, shape_object, snapshot, thawed

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "Change",
    "Folder",
    "Shape",
    "change",
    "fold",
    "fold_each",
    "shape_of",
    "text_in",
    "text_of",
]


class _Whole:
    """A state as it is now, to be encoded when asked."""

    __slots__ = ("_packed", "_snapshot")

    def __init__(self, snapshot: object) -> None:
        self._snapshot = snapshot
        self._packed: bytes | None = None

    def payload(self) -> bytes:
        if self._packed is None:  # two threads at once: the same bytes twice
            self._packed = pack_frame(b'[["=",[],%b]]' % encode(thawed(self._snapshot)))
        return self._packed


@dataclass(frozen=True, slots=True)
class Change:
    """What one save writes."""

    shape: Shape
    """Of the new state."""
    frames: bytes | None
    """Payload against the basis (``b""``: nothing changed); ``None`` without a basis."""
    _whole: _Whole = field(repr=False, compare=False)

    def whole(self) -> bytes:
        """Payload that holds the state as it was at ``change``, by itself."""
        return self._whole.payload()


def shape_of(state: dict[str, Json]) -> Shape:
    """The shape of a canonical state, such as ``fold`` gives.

    Raises:
        IntegrityError: it holds what no save would have accepted.
    """
    try:
        return Shape(shape_object(cast("dict[str, object]", state), None, 1, decoded=True))
    except (TypeError, ValueError) as exc:
        raise IntegrityError("a stored state holds what a state cannot hold") from exc


def change(state: Mapping[str, object], basis: Shape | None, *, private: bool = False) -> Change:
    """What turns the version of ``basis`` into ``state``.

    Args:
        state: a JSON object; never kept or changed, unless ``private``.
        basis: of the version that the frames are to be against.
        private: the caller promises that nobody will change ``state``.

    Raises:
        SerializationError: a value cannot be kept exactly; names its path.
    """
    plain, root = measure(state, basis)
    frames = None
    if basis is not None:
        frame = Frame()
        diff(basis._root, root, plain, (), frame)  # noqa: SLF001  # a shape is opaque to others
        frames = frame.payload()
    return Change(Shape(root), frames, _Whole(plain if private else snapshot(plain, root)))


# Shapes: digests, and the check that a value is exactly JSON, in one pass.
