"""`PayloadCodec`: encodes arguments, results and errors on their way into the database, such as by encryption.

The interface and small building blocks. `envelopes.py` decides where in a row an encoded value stands.
"""

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal

from horsies._checks import Checks, shown
from horsies.errors import HorsiesError

PayloadKind = Literal["argument", "shared_argument", "result", "error", "signal", "progress"]
"""What a payload is. `shared_argument`: the argument of a node that has a compensation, which gets it too."""

PLAIN: Final = "plain"
"""The name in the envelope of a value that no codec has encoded, and that would look like an encoded one."""
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,59}")
_NAME_FIX: Final = "use up to 60 letters, digits, dots, dashes, underscores and plus signs"


class PayloadError(HorsiesError):
    """A payload cannot be encoded or decoded. Raise it in a codec to say why: its message is stored and logged, so it
    must not repeat the payload. Of other exceptions only the class is told."""


@dataclass(frozen=True, slots=True)
class PayloadContext:
    """What a payload belongs to. The same for `encode` and `decode` of one payload."""

    kind: PayloadKind
    name: str
    """The task; for a signal its name, and empty for the error of a workflow's run."""
    parameter: str | None = None
    """The parameter, for arguments; the position of one that is passed without a name."""

    @property
    def associated_data(self) -> bytes:
        """The context as bytes, for authenticated encryption: a payload that was moved to another task, to another
        parameter, or from a result to an argument is refused."""
        return json.dumps(["horsies", self.kind, self.name, self.parameter], ensure_ascii=False).encode()


class PayloadCodec(ABC):
    """Encodes payloads for the database. Subclass it; `AppConfig(payload_codec=...)` installs it.

    Both methods are called in clients, in workers and in their child processes, from several threads, and sometimes
    inside a database transaction: they must be quick, thread-safe, and do no network calls.
    """

    name: str
    """Stored beside each encoded value, so that readers without the codec can say what they miss. Choose a new one when
    the format changes; key ids belong into the encoded bytes."""

    @abstractmethod
    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        """The encoded form of `data`, which is JSON in UTF-8. None stores it as it is."""

    @abstractmethod
    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        """What was given to `encode`. Raises when it cannot, such as for an unknown key."""

    def fingerprint(self, digest: bytes) -> str | None:
        """A keyed hash, such as HMAC-SHA256 as hex, over the digest of a call. It is stored with the task to recognise
        a repeated send, so that equal calls show as equal; a plain digest would also let a reader of the database test
        guesses. None: the plain digest, SHA-256."""
        return None

    def reader(self, name: str) -> "PayloadCodec | None":
        """The codec that decodes payloads with this name; None if there is none. See `with_older`."""
        return self if name == self.name else None


class _DecodeOnly(PayloadCodec):
    def __init__(self, codec: PayloadCodec) -> None:
        self.name = codec.name
        self._codec = codec

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        return None

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return self._codec.decode(data, context)

    def reader(self, name: str) -> PayloadCodec | None:
        return self._codec.reader(name)


def decode_only(codec: PayloadCodec) -> PayloadCodec:
    """A codec that reads what `codec` wrote and itself writes plain payloads: for the first deploy of a codec, until
    every process can read its payloads, and for the way back."""
    _check_all("decode_only", (codec,))
    return _DecodeOnly(codec)


class _WithOlder(PayloadCodec):
    def __init__(self, codec: PayloadCodec, older: Sequence[PayloadCodec]) -> None:
        self.name = codec.name
        self._codec = codec
        self._all = (codec, *older)

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        return self._codec.encode(data, context)

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return self._codec.decode(data, context)

    def fingerprint(self, digest: bytes) -> str | None:
        return self._codec.fingerprint(digest)

    def reader(self, name: str) -> PayloadCodec | None:
        return next((found for codec in self._all if (found := codec.reader(name)) is not None), None)


def with_older(codec: PayloadCodec, *older: PayloadCodec) -> PayloadCodec:
    """A codec that writes as `codec` does and also reads what the older ones wrote, each by its name: for the change
    from one codec to another."""
    _check_all("with_older", (codec, *older))
    return _WithOlder(codec, older)


class _Chain(PayloadCodec):
    def __init__(self, codecs: Sequence[PayloadCodec]) -> None:
        self.name = "+".join(codec.name for codec in codecs)
        self._codecs = tuple(codecs)

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        used = 0
        for at, codec in enumerate(self._codecs):
            encoded = codec.encode(data, context)
            if encoded is not None:
                data, used = encoded, used | 1 << at
        return bytes([used]) + data if used else None

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        if not data or data[0] >= 1 << len(self._codecs):
            raise PayloadError(f"it was not written by the chain {self.name}")
        used, data = data[0], data[1:]
        for at, codec in reversed(list(enumerate(self._codecs))):
            if used & 1 << at:
                data = codec.decode(data, context)
        return data

    def fingerprint(self, digest: bytes) -> str | None:
        return next((found for codec in self._codecs if (found := codec.fingerprint(digest)) is not None), None)


def chain(*codecs: PayloadCodec) -> PayloadCodec:
    """One codec of several: `chain(ZlibCodec(), encryption)` compresses, then encrypts."""
    _check_all("chain", codecs)
    return _Chain(codecs)


def _check_all(subject: str, codecs: Sequence[object]) -> None:
    checks = Checks(subject)
    if not 1 <= len(codecs) <= 8:
        checks.add("codecs", f"takes 1 to 8 codecs, got {len(codecs)}", "give each codec once")
    for at, codec in enumerate(codecs):
        check_codec(checks, f"codecs[{at}]", codec)
    checks.finish()


def check_codec(checks: Checks, field: str, codec: object) -> None:
    """Add the problems of what should be a codec."""
    if not isinstance(codec, PayloadCodec):
        what = f"the class {codec.__name__}" if isinstance(codec, type) else shown(codec)
        checks.add(field, f"must be an instance of a PayloadCodec, got {what}", "subclass horsies.PayloadCodec")
        return
    name: object = getattr(codec, "name", None)
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        checks.add(f"{field}.name", f"{shown(name)} is no name of a codec", _NAME_FIX)
    elif name == PLAIN:
        checks.add(f"{field}.name", f"{PLAIN!r} is reserved for horsies itself", "choose another name")
