"""Encrypted payloads: AES-GCM with key ids, so that keys can be rotated while tasks wait and results are kept.

    pip install cryptography
    export PAYLOAD_KEYS="2026b=$(python -c 'import os; print(os.urandom(32).hex())')"
    export PAYLOAD_FINGERPRINT_KEY="$(python -c 'import os; print(os.urandom(32).hex())')"
    horsies worker encrypted_payloads:app
    python encrypted_payloads.py

To rotate: deploy `PAYLOAD_KEYS="2026b=...,2026c=..."` everywhere, so that every process can read the new key. Then
deploy it as `"2026c=...,2026b=..."`: the first key encrypts. Remove an old key when no row needs it any more, which is
after the retention of tasks and workflows. PAYLOAD_FINGERPRINT_KEY stays: with another one, repeated sends and the
keys of `unique_by_args` are not recognised any more.
"""

import hmac
import os
from collections.abc import Mapping

from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from horsies import (
    AppConfig,
    Horsies,
    PayloadCodec,
    PayloadContext,
    PayloadError,
    PostgresConfig,
    TaskError,
    TaskResult,
)
from horsies.contrib.compression import ZlibCodec
from horsies.payload_codec import chain

_NONCE_BYTES = 12


class AesGcmCodec(PayloadCodec):
    """Encrypts with the first of its keys, and decrypts with the one that a payload names.

    An encoded payload is `<length of the key id><key id><nonce><ciphertext and tag>`. The context is authenticated: a
    payload that was moved to another task or parameter is refused.
    """

    name = "aes-gcm"

    def __init__(self, keys: Mapping[str, bytes], fingerprint_key: bytes) -> None:
        if not keys:
            raise ValueError("AesGcmCodec needs at least one key")
        self._ciphers = {key_id: AESGCM(key) for key_id, key in keys.items()}
        self._first = next(iter(keys))
        self._fingerprint_key = fingerprint_key

    def encode(self, data: bytes, context: PayloadContext) -> bytes:
        nonce, key_id = os.urandom(_NONCE_BYTES), self._first.encode()
        sealed = self._ciphers[self._first].encrypt(nonce, data, context.associated_data)
        return bytes([len(key_id)]) + key_id + nonce + sealed

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        length = data[0]
        key_id, rest = data[1 : 1 + length].decode(), data[1 + length :]
        cipher = self._ciphers.get(key_id)
        if cipher is None:
            raise PayloadError(f"there is no key {key_id!r} in PAYLOAD_KEYS")
        return cipher.decrypt(rest[:_NONCE_BYTES], rest[_NONCE_BYTES:], context.associated_data)

    def fingerprint(self, digest: bytes) -> str:
        return hmac.digest(self._fingerprint_key, digest, "sha256").hex()


def keys_from(text: str) -> dict[str, bytes]:
    """`id=hex,id=hex`, the key that encrypts first."""
    pairs = (part.partition("=") for part in text.split(",") if part.strip())
    return {key_id.strip(): bytes.fromhex(key) for key_id, _, key in pairs}


aes_gcm = AesGcmCodec(keys_from(os.environ["PAYLOAD_KEYS"]), bytes.fromhex(os.environ["PAYLOAD_FINGERPRINT_KEY"]))
app = Horsies(
    AppConfig(
        PostgresConfig(),  # HORSIES_DATABASE_URL
        payload_codec=chain(ZlibCodec(), aes_gcm),
    )
)


@app.task("letters.write")
def write_letter(patient: str, finding: str) -> TaskResult[str, TaskError]:
    if not finding:
        return TaskResult(err=TaskError("NO_FINDING", f"there is no finding for {patient}"))
    return TaskResult(ok=f"Dear {patient}, your result: {finding}.")


if __name__ == "__main__":
    letter = write_letter.send("Ada Lovelace", "all is well")
    print(letter.get(timeout_ms=10_000).unwrap())
