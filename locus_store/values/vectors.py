"""Embeddings: checks, bytes, and comparison. Every backend stores float32 and scores alike."""

from __future__ import annotations

import math
import sys
from array import array
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final, Literal, TypeAlias

from locus_store.errors import InvalidArgumentError, MissingExtraError, make_install_command

Metric: TypeAlias = Literal["cosine", "l2", "ip"]

MAX_DIMENSION: Final = 2000
"""The limit of pgvector's indexes for a ``vector``."""

METRICS: Final = ("cosine", "l2", "ip")
FLOAT_BYTES: Final = 4


def check_dimension(dimension: object) -> None:
    """Refuse a number of dimensions that is not a whole number from 1 to 2,000."""
    if type(dimension) is not int or not 1 <= dimension <= MAX_DIMENSION:
        raise InvalidArgumentError(
            f"dimension={dimension!r} must be a whole number from 1 to {MAX_DIMENSION}"
        )


def check_metric(metric: object) -> None:
    """Refuse a metric that is none of ``METRICS``."""
    if metric not in METRICS:
        raise InvalidArgumentError(f"metric={metric!r} must be one of {', '.join(METRICS)}")


def require_numpy() -> None:
    """Refuse embeddings if NumPy is not installed."""
    if find_spec("numpy") is None:
        raise MissingExtraError(f"embeddings need NumPy: {make_install_command('vectors')}")


def pack(embedding: object, dimension: int, metric: Metric) -> bytes:
    """Return an embedding as float32, little-endian.

    Args:
        embedding: A sequence or array of numbers.
        dimension: The required number of dimensions.
        metric: ``cosine`` refuses the zero vector, which has no direction.

    Raises:
        InvalidArgumentError: It is not ``dimension`` finite numbers of float32.
    """
    if not isinstance(embedding, Sequence) and hasattr(embedding, "tolist"):
        embedding = embedding.tolist()  # an array
    if not isinstance(embedding, Sequence) or isinstance(embedding, str | bytes):
        raise InvalidArgumentError(
            f"an embedding is a list of {dimension} numbers, not {type(embedding).__name__}"
        )
    if len(embedding) != dimension:
        raise InvalidArgumentError(
            f"an embedding of {len(embedding)} numbers, where this store keeps {dimension}: use "
            "the model that it was made for"
        )
    try:
        numbers = array("f", embedding)
    except (TypeError, OverflowError) as exc:
        raise InvalidArgumentError(
            f"an embedding holds a value that is not a number: {exc}"
        ) from exc
    if not all(map(math.isfinite, numbers)):
        raise InvalidArgumentError("an embedding holds a number that float32 cannot: NaN or huge")
    if metric == "cosine" and not any(numbers):
        raise InvalidArgumentError(
            "an embedding of zeros has no direction: cosine cannot compare it"
        )
    return _to_little_endian(numbers).tobytes()


def unpack(data: bytes) -> list[float]:
    """Return the numbers of ``pack``, with the precision of float32."""
    return _to_little_endian(array("f", data)).tolist()


def _to_little_endian(numbers: array[float]) -> array[float]:
    if sys.byteorder == "big":
        numbers = array("f", numbers)
        numbers.byteswap()
    return numbers


def compute_scores(query: bytes, embeddings: Sequence[bytes], metric: Metric) -> list[float]:
    """Return the similarity of each embedding to the query; higher is nearer.

    It is the cosine, within -1 and 1; the inner product; or the negative Euclidean distance.
    Computed in float64. The cosine with a zero vector is 0.
    """
    import numpy as np  # noqa: PLC0415  (an extra, and slow to load)

    if not embeddings:
        return []
    target = np.frombuffer(query, dtype="<f4").astype(np.float64)
    rows: Any = np.frombuffer(b"".join(embeddings), dtype="<f4").astype(np.float64)
    rows = rows.reshape(len(embeddings), -1)
    if metric == "l2":
        found = -np.linalg.norm(rows - target, axis=1)
    else:
        found = rows @ target
        if metric == "cosine":
            lengths = np.linalg.norm(rows, axis=1) * np.linalg.norm(target)
            found = np.divide(found, lengths, out=np.zeros_like(found), where=lengths > 0)
            found = np.clip(found, -1.0, 1.0)
    result: list[float] = found.tolist()
    return result
