"""Sealed bytes: their place, their key, and records that continue each other."""

from __future__ import annotations

import hashlib
import hmac
import os
import random
from dataclasses import replace
from typing import Any

import orjson
import pytest

from locus_store import EncryptionError, IntegrityError
from locus_store.values import sealing
from locus_store.values.encoding import pack_frame
from locus_store.values.sealing import (
    NODE_BYTES,
    ROOT,
    DataKey,
    Place,
    RecordOpener,
    SubjectKey,
    seal,
    seal_record,
)

PLACE = ("item", "t", "k")
REPEATABLE = ("write", "t", "", "v1", 0)
PLACES = (PLACE, REPEATABLE)


def make_data_key() -> DataKey:
    nodes = {ROOT: os.urandom(NODE_BYTES)}
    return DataKey(os.urandom(6), "acme", os.urandom(32), os.urandom(32), nodes)


def make_key() -> SubjectKey:
    key = make_data_key()
    sealing.LOADED[key.key_id] = key
    return key.derive(("thread", "t"))


def open_sealed(content: bytes, *which: Any) -> bytes:
    return sealing.open_sealed(content, *which)[1]


@pytest.fixture
def key() -> SubjectKey:
    return make_key()


@pytest.mark.parametrize("place", PLACES)
def test_sealed_bytes_come_back(key: SubjectKey, place: Place) -> None:
    for size in (0, 1, 100, 100_000):
        content = os.urandom(size)
        sealed = seal(key, content, place)
        assert open_sealed(sealed, place, "acme") == content
        assert content not in sealed or size < 2
        assert len(sealed) - size <= (27 if place is REPEATABLE else 78)


def derive_by_hkdf(key: SubjectKey, info: bytes) -> bytes:
    """Derive from the data key, written from the description."""
    from cryptography.hazmat.primitives.hashes import SHA512
    from cryptography.hazmat.primitives.kdf.hkdf import HKDFExpand

    node, number = key.data_key.nodes[ROOT], int.from_bytes(key.leaf)
    for at in reversed(range(48)):
        node = hmac.digest(node, bytes((number >> at & 1,)), "sha256")[:16]
    secret = hmac.digest(key.data_key.secret, node, "sha256")
    return HKDFExpand(SHA512(), 64, info).derive(secret)


def test_the_key_of_a_record_is_that_of_hkdf(key: SubjectKey) -> None:
    salt = os.urandom(12)
    derived = derive_by_hkdf(key, b"locus-store record 1" + salt)
    assert b"".join(sealing._expand(key.mac, sealing._INFO + salt)) == derived


def test_a_repeatable_value_is_a_keyed_hash_and_counter_mode(key: SubjectKey) -> None:
    """Written from the description, with other functions."""
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    plain, head = os.urandom(100), key.data_key.key_id + bytes((0,))
    keys = derive_by_hkdf(key, b"locus-store repeatable 1")
    where = orjson.dumps([0xE1, "acme", *REPEATABLE])
    siv = hashlib.blake2b(head + where + plain, key=keys[:32], digest_size=16).digest()
    counter = modes.CTR(siv[:12] + (2).to_bytes(4, "big"))
    body = Cipher(algorithms.AES(keys[32:]), counter).encryptor().update(plain)
    assert seal(key, plain, REPEATABLE) == bytes((0xE1, len(head + body + siv))) + head + body + siv


def test_a_repeatable_value_takes_a_key_that_its_tenant_has_for_this_thread_only() -> None:
    """So a guess of what was forgotten cannot be checked with the keys that are left."""
    before = make_data_key()
    nodes, _ = before.puncture([("thread", "t")])
    left = replace(before, nodes=nodes)
    sealing.LOADED[left.key_id] = left
    sealed = seal(before.derive(("thread", "t")), b"guess", REPEATABLE)
    with pytest.raises(sealing.ForgottenError):
        open_sealed(sealed, REPEATABLE)
    again = seal(left.derive(("thread", "t")), b"guess", REPEATABLE)
    assert again[9:] != sealed[9:]
    assert again[8] == 1
    assert open_sealed(again, REPEATABLE) == b"guess"
    key, found = sealing.open_sealed(again, REPEATABLE)
    assert seal(key, found, REPEATABLE) == again


@pytest.mark.parametrize("place", PLACES)
def test_another_place_or_tenant_is_refused(key: SubjectKey, place: Place) -> None:
    sealed = seal(key, b"x", place)
    others = [("item", "u"), ("write", "t", "v1"), ("metadata", *place[1:]), (*place, None)]
    for other in [*others, place[:-1], (*place[:-1], 1), PLACE, REPEATABLE]:
        if other != place:
            with pytest.raises(IntegrityError, match="moved"):
                open_sealed(sealed, other)
    with pytest.raises(EncryptionError, match="another tenant"):
        open_sealed(sealed, place, "other")
    with pytest.raises(EncryptionError, match="other keys"):
        open_sealed(sealed, place, "acme", {make_key().data_key.key_id})


def test_a_key_that_is_not_loaded_is_named(key: SubjectKey) -> None:
    sealed = seal(key, b"x", PLACE)
    key_id = key.data_key.key_id
    del sealing.LOADED[key_id]
    with pytest.raises(EncryptionError, match=key_id.hex()):
        open_sealed(sealed, PLACE)


@pytest.mark.parametrize("place", PLACES)
def test_a_key_commits(key: SubjectKey, place: Place) -> None:
    """The id of another key in the head is refused."""
    other, sealed = make_key(), seal(key, b"x", place)
    for size in (6, 12):
        changed = sealed.replace(key.key_id[:size], other.key_id[:size])
        if changed != sealed:
            with pytest.raises(IntegrityError, match="not what was saved"):
                open_sealed(changed, place)
    assert sealed[2:8] == key.data_key.key_id


def test_clear_bytes_are_refused() -> None:
    for content in (b"", b"x", pack_frame(b"[]")):
        with pytest.raises(EncryptionError, match="in clear"):
            open_sealed(content, PLACE)


def test_equal_bytes_are_equal_only_where_that_is_asked_for(key: SubjectKey) -> None:
    assert seal(key, b"x", PLACE) != seal(key, b"x", PLACE)
    repeated = seal(key, b"x", REPEATABLE)
    assert repeated == seal(key, b"x", REPEATABLE)
    assert repeated[9:] != seal(key, b"y", REPEATABLE)[9:]
    assert repeated[9:] != seal(key, b"x", (*REPEATABLE, 1))[9:]


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


def count_accepted(rows: int, key: SubjectKey, place: Place = PLACE) -> int:
    """Tamper with that many sealed values, each once; return how many are opened."""
    rng, accepted = random.Random(rows), 0
    sealed = [seal(key, rng.randbytes(rng.randrange(200)), (*place, at)) for at in range(50)]
    for _ in range(rows):
        at = rng.randrange(len(sealed))
        content, to, way = sealed[at], at, rng.random()
        if way < 0.7:
            content = tamper(content, rng)
        elif way < 0.8:
            to = rng.choice([it for it in range(60) if it != at])  # moved, whole
        elif way < 0.9:  # two halves
            cut, other = rng.randrange(len(content)), sealed[at - 1]
            content = content[:cut] + other[len(other) - len(content) + cut :]
        else:  # the end of another value
            content = content[:-16] + sealed[at - 1][-16:]
        if content == sealed[at] and to == at:
            continue
        try:
            open_sealed(content, (*place, to), "acme")
        except IntegrityError:
            continue
        accepted += 1
    return accepted


@pytest.mark.parametrize("place", PLACES)
def test_no_tampered_value_is_accepted(key: SubjectKey, place: Place) -> None:
    assert count_accepted(2000, key, place) == 0


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
