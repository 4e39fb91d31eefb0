"""`ZlibCodec`: compresses large payloads with the standard library. It hides nothing."""

import zlib

from horsies._checks import Checks
from horsies.payload_codec import PayloadCodec, PayloadContext, PayloadError

_MAX_BYTES = 268_435_456


class ZlibCodec(PayloadCodec):
    """Compresses payloads of at least `threshold` bytes, if that makes them smaller.

    `level`: 1 (fast) to 9 (small). `max_bytes`: what one payload may grow to when it is read, so that a row cannot fill
    the memory of a worker.
    """

    name = "zlib"

    def __init__(self, threshold: int = 1_024, level: int = 3, max_bytes: int = _MAX_BYTES) -> None:
        checks = Checks("ZlibCodec")
        checks.integer("threshold", threshold, 0, _MAX_BYTES, unit="bytes")
        checks.integer("level", level, 1, 9)
        checks.integer("max_bytes", max_bytes, 1, _MAX_BYTES, unit="bytes")
        checks.finish()
        self._threshold = threshold
        self._level = level
        self._max_bytes = max_bytes

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        if len(data) < self._threshold:
            return None
        packed = zlib.compress(data, self._level)
        # in the row it is base64, which is a third longer
        return packed if len(packed) * 4 < len(data) * 3 else None

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        unpacking = zlib.decompressobj()
        plain = unpacking.decompress(data, self._max_bytes)
        if not unpacking.eof:
            whole = unpacking.unconsumed_tail
            raise PayloadError(f"it is larger than {self._max_bytes:,} bytes" if whole else "its data ends too early")
        return plain
