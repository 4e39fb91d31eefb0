"""Payload codecs for tests: one that hides, authenticates and never gives two payloads the same text, and others that
misbehave."""

import hashlib
import hmac
import os
from collections.abc import Mapping

from horsies import PayloadCodec, PayloadContext, PayloadError

KEYS = {"k1": b"first key of the tests", "k2": b"second key of the tests"}


class SealCodec(PayloadCodec):
    """Random and authenticated, with key ids, from the standard library alone. The first key writes."""

    name = "seal"

    def __init__(self, keys: Mapping[str, bytes] = KEYS, *, keyed: bool = True) -> None:
        self.keys = dict(keys)
        self.keyed = keyed
        self.first = next(iter(keys))
        self.encoded = 0

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        self.encoded += 1
        nonce, key = os.urandom(8), self.keys[self.first]
        body = nonce + _xor(data, key, nonce)
        return self.first.encode() + _tag(key, body, context) + body

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        key = self.keys.get(data[:2].decode())
        if key is None:
            raise PayloadError(f"no key {data[:2].decode()!r}")
        tag, body = data[2:18], data[18:]
        if not hmac.compare_digest(tag, _tag(key, body, context)):
            raise ValueError("the tag does not match, and this message would tell SECRETS")
        return _xor(body[8:], key, body[:8])

    def fingerprint(self, digest: bytes) -> str | None:
        return hmac.digest(self.keys[self.first], digest, "sha256").hex() if self.keyed else None


def _xor(data: bytes, key: bytes, nonce: bytes) -> bytes:
    stream = hashlib.shake_256(key + nonce).digest(len(data))
    return (int.from_bytes(data) ^ int.from_bytes(stream)).to_bytes(len(data)) if data else b""


def _tag(key: bytes, body: bytes, context: PayloadContext) -> bytes:
    return hmac.digest(key, body + b"\0" + context.associated_data, "sha256")[:16]
