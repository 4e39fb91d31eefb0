"""Decoding returns what was encoded, also when the stream arrives in pieces."""

import pytest
from hypothesis import given, strategies as st

from horsies_worker.child import frames
from horsies_worker.child.frames import BadFrame, FrameReader, FrameType, StopCode
from horsies_worker.child.jobs import Job
from horsies_worker.child.outcome import Outcome, OutcomeKind

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(0, 2**62)


@given(numbers, texts, texts, st.none() | texts, st.none() | texts, st.none() | st.integers(0, 2**40))
def test_jobs(seq: int, task_id: str, name: str, args: str | None, kwargs: str | None, timeout_ms: int | None) -> None:
    job = Job(task_id, seq, 3, name, args, kwargs, timeout_ms)
    assert frames.decode_job(frames.encode_job(seq, job)) == (seq, job)


@given(numbers, st.sampled_from(OutcomeKind), texts, st.none() | texts, st.none() | texts, st.none() | texts)
def test_results(
    seq: int, kind: OutcomeKind, result: str, code: str | None, message: str | None, reason: str | None
) -> None:
    outcome = Outcome(kind, result, code, message, reason, 15, started_mono=1.5, finished_mono=2.5)
    if kind is OutcomeKind.OK:  # which has only a result and times
        outcome = Outcome(kind, result, started_mono=1.5, finished_mono=2.5)
    frame = frames.encode_result(seq, outcome, 0.25, 77)
    assert frames.decode_result(frame) == (seq, outcome, 0.25, 77)


def test_error_texts_that_utf8_cannot_carry() -> None:
    outcome = Outcome(OutcomeKind.ERR, "{}", "A\ud800", "b\udfff", started_mono=0.0)
    assert frames.decode_result(frames.encode_result(1, outcome, 0, 0))[1].error_code == "A?"


def test_the_small_frames() -> None:
    assert frames.decode_stop(frames.encode_stop(9, StopCode.TIMEOUT, interrupt=True)) == (9, StopCode.TIMEOUT, True)
    assert frames.decode_ready(frames.encode_ready(12, 34)) == (12, 34)
    assert frames.decode_progress(frames.encode_progress(5, '"ü"')) == (5, '"ü"')
    assert frames.decode_stacks(frames.encode_stacks("no\ud800")) == "no\\ud800"
    assert frames.decode_start_failed(frames.encode_start_failed("no\ud800")) == "no?"
    assert frames.unpack_tokens(frames.pack_tokens([1, 2**60])) == (1, 2**60)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.randoms())
def test_a_stream_that_arrives_in_pieces(sizes: list[int], chance: object) -> None:
    sent = [frames.encode_progress(number, "x" * size) for number, size in enumerate(sizes)]
    stream = b"".join(sent)
    reader = FrameReader()
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(stream):
        step = chance.randint(1, 300)  # type: ignore[attr-defined]
        found += reader.feed(stream[at : at + step])
        at += step
    assert found == [(FrameType.PROGRESS, frame) for frame in sent]


DECODERS = {
    FrameType.JOB: frames.decode_job, FrameType.CALL: frames.decode_call, FrameType.STOP: frames.decode_stop,
    FrameType.READY: frames.decode_ready, FrameType.START_FAILED: frames.decode_start_failed,
    FrameType.RESULT: frames.decode_result, FrameType.PROGRESS: frames.decode_progress,
    FrameType.LATE: frames.decode_late, FrameType.COMPLETING: frames.decode_completing,
    FrameType.CLAIMANT: frames.decode_claimant, FrameType.STACKS: frames.decode_stacks,
}  # fmt: skip


def test_every_type_of_frame_has_a_decoder_here() -> None:
    assert DECODERS.keys() == set(FrameType)


@given(st.lists(st.binary(max_size=60), max_size=5), st.sampled_from(FrameType), st.integers(0, 80))
def test_garbage_is_a_frame_or_one_of_the_errors_that_readers_expect(
    parts: list[bytes], kind: FrameType, size: int
) -> None:
    """Both sides end on these errors (frames.BROKEN), and on no other: nothing of a broken stream is run."""
    body = b"".join(parts)[:size]
    streams = [b"".join(parts), len(body).to_bytes(4, "little") + bytes([kind]) + body]
    for stream in streams:
        reader = FrameReader()
        try:
            for found, frame in reader.feed(stream):
                DECODERS[FrameType(found)](frame)
        except frames.BROKEN:
            continue


def test_a_reader_does_not_wait_for_the_rest_of_garbage() -> None:
    for head in (b"\xff\xff\xff\xff\x05", b"\x00\x00\x00\x00\x63"):
        with pytest.raises(BadFrame):
            FrameReader().feed(head)
