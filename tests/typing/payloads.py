# pyright: strict
"""A payload codec is checked against the class that it derives from."""

from typing import assert_type

from horsies import AppConfig, PayloadCodec, PayloadContext, PostgresConfig
from horsies.contrib.compression import ZlibCodec
from horsies.payload_codec import chain, decode_only, with_older


class Reversed(PayloadCodec):
    name = "reversed"

    def encode(self, data: bytes, context: PayloadContext) -> bytes | None:
        assert_type(context.associated_data, bytes)
        assert_type(context.parameter, str | None)
        return data[::-1]

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return data[::-1]


class Text(PayloadCodec):
    name = "text"

    def encode(self, data: bytes, context: PayloadContext) -> str:  # type: ignore[override]
        return data.decode()

    def decode(self, data: bytes, context: PayloadContext) -> bytes:
        return data


assert_type(chain(ZlibCodec(threshold=10), Reversed()), PayloadCodec)
assert_type(with_older(Reversed(), ZlibCodec()), PayloadCodec)
AppConfig(PostgresConfig("postgresql://h/d"), payload_codec=decode_only(Reversed()))
AppConfig(PostgresConfig("postgresql://h/d"), payload_codec=Reversed)  # type: ignore[arg-type]
chain("zlib")  # type: ignore[arg-type]
