"""Sealed bytes: their place, their key, and records that continue each other."""

from __future__ import annotations

import os
import random

import pytest

from locus_store import EncryptionError, IntegrityError
from locus_store.values import sealing
from locus_store.values.encoding import pack_frame
from locus_store.values.sealing import (
    NODE_BYTES,
    ROOT,
    DataKey,
    RecordOpener,
    SubjectKey,
    open_sealed,
    seal,
    seal_record,
)

PLACE = ("write", "t", "", "v1", 0)


def make_data_key() -> DataKey:
    nodes = {ROOT: os.urandom(NODE_BYTES)}
    return DataKey(os.urandom(6), "acme", os.urandom(32), os.urandom(32), nodes)


def make_key() -> SubjectKey:
    key = make_data_key()
    sealing.load_key(key)
    return key.derive(("thread", "t"))


@pytest.fixture
def key() -> SubjectKey:
    return make_key()


def test_sealed_bytes_come_back_and_take_a_hundred_bytes_more(key: SubjectKey) -> None:
    for size in (0, 1, 100, 100_000):
        content = os.urandom(size)
        sealed = seal(key, content, PLACE)
        assert open_sealed(sealed, PLACE, "acme") == content
        assert content not in sealed or size < 2
    record = seal_record(key, pack_frame(b"[]"), None, bytes(16))
    assert len(record) - len(pack_frame(b"[]")) <= 100


def test_the_key_of_a_record_is_that_of_hkdf(key: SubjectKey) -> None:
    from cryptography.hazmat.primitives.hashes import SHA512
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    salt = os.urandom(12)
    derived = HKDFExpand(SHA512(), 64, b"locus-store record 1" + salt).derive(key.secret)
    assert b"".join(sealing._derive(key, salt)) == derived


def test_another_place_or_tenant_is_refused(key: SubjectKey) -> None:
    sealed = seal(key, b"x", PLACE)
    for place in (("item", *PLACE[1:]), (*PLACE[:-1], 1), (*PLACE, None), ("write", "t", "", "v1")):
        with pytest.raises(IntegrityError, match="moved"):
            open_sealed(sealed, place)
    with pytest.raises(EncryptionError, match="another tenant"):
        open_sealed(sealed, PLACE, "other")


def test_a_key_that_is_not_loaded_is_named(key: SubjectKey) -> None:
    sealed = seal(key, b"x", PLACE)
    key_id = key.data_key.key_id
    sealing.unload_key(key_id)
    with pytest.raises(EncryptionError, match=key_id.hex()):
        open_sealed(sealed, PLACE)


def test_a_key_commits(key: SubjectKey) -> None:
    """The id of another key in the head is refused before anything is decrypted."""
    other, sealed = make_key(), seal(key, b"x", PLACE)
    with pytest.raises(IntegrityError, match="not what was saved"):
        open_sealed(sealed.replace(key.key_id, other.key_id), PLACE)


def test_clear_bytes_are_refused() -> None:
    for content in (b"", b"x", pack_frame(b"[]")):
        with pytest.raises(EncryptionError, match="in clear"):
            open_sealed(content, PLACE)


def test_equal_bytes_are_equal_only_where_that_is_asked_for(key: SubjectKey) -> None:
    assert seal(key, b"x", PLACE) != seal(key, b"x", PLACE)
    repeated = seal(key, b"x", PLACE, is_repeatable=True)
    assert repeated == seal(key, b"x", PLACE, is_repeatable=True)
    assert repeated != seal(key, b"y", PLACE, is_repeatable=True)
    assert repeated != seal(key, b"x", (*PLACE, 1), is_repeatable=True)


def tamper(sealed: bytes, rng: random.Random) -> bytes:
    """Return other bytes: a bit flipped, cut, extended, or with a part of it moved."""
    at = rng.randrange(len(sealed))
    way = rng.randrange(4)
    if way == 0:
        return sealed[:at] + bytes((sealed[at] ^ 1 << rng.randrange(8),)) + sealed[at + 1 :]
    if way == 1:
        return sealed[:at]
    if way == 2:
        return sealed[:at] + rng.randbytes(1) + sealed[at:]
    return sealed[at:] + sealed[:at] if at else sealed[1:]


def count_accepted(rows: int, key: SubjectKey) -> int:
    """Tamper with that many sealed values, each once; return how many are opened."""
    rng, accepted = random.Random(rows), 0
    sealed = [seal(key, rng.randbytes(rng.randrange(200)), (*PLACE, at)) for at in range(50)]
    for _ in range(rows):
        at = rng.randrange(len(sealed))
        if rng.random() < 0.8:
            content, place = tamper(sealed[at], rng), at
        else:
            content, place = sealed[at], at + 1  # moved, whole
        if content == sealed[at] and place == at:
            continue
        try:
            open_sealed(content, (*PLACE, place), "acme")
        except IntegrityError:
            continue
        accepted += 1
    return accepted


def test_no_tampered_value_is_accepted(key: SubjectKey) -> None:
    assert count_accepted(2000, key) == 0


def test_records_that_do_not_continue_each_other_are_refused(key: SubjectKey) -> None:
    digests = [os.urandom(16) for _ in range(4)]
    records = [
        seal_record(key, b"%d" % at, digests[at - 1] if at else None, digests[at])
        for at in range(4)
    ]
    assert [RecordOpener().open_joined(b"".join(records))] == [b"0123"]
    for order in ([1], [0, 2], [0, 1, 3], [0, 2, 1, 3], [0, 1, 1], [1, 0]):
        with pytest.raises(IntegrityError, match="does not continue"):
            RecordOpener().open_joined(b"".join(records[at] for at in order))


def test_records_and_frames_are_told_apart_where_they_were_joined(key: SubjectKey) -> None:
    frames = [pack_frame(b"a" * 5), pack_frame(b"b" * 2000)]
    sealed = seal_record(key, b"c", os.urandom(16), bytes(16))
    joined = b"".join((*frames, sealed))
    assert list(sealing.split_records(joined)) == [*frames, sealed]
    assert RecordOpener().open_joined(joined) == b"".join((*frames, b"c"))
    with pytest.raises(EncryptionError, match="in clear"):
        RecordOpener(requires_seal=True).open_joined(joined)
    for end in (1, 30):
        with pytest.raises(IntegrityError, match="cut off"):
            list(sealing.split_records(joined[:-end]))
