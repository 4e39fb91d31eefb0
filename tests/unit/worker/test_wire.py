"""Frames survive the wire, however the bytes are cut."""

from hypothesis import given, strategies as st

from horsies_worker import wire
from horsies_worker.jobs import Job, OutcomeKind
from horsies_worker.wire import FrameReader, FrameType, Report, StopCode

texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
numbers = st.integers(0, 2**62)


@given(numbers, texts, texts, st.none() | texts, st.none() | texts, st.none() | st.integers(0, 2**40))
def test_jobs(seq: int, task_id: str, name: str, args: str | None, kwargs: str | None, timeout_ms: int | None) -> None:
    job = Job(task_id, seq, 3, name, args, kwargs, timeout_ms)
    received = wire.decode_job(wire.encode_job(seq, job))
    assert (received.seq, received.generation, received.attempt) == (seq, seq, 3)
    assert (received.task_id, received.task_name, received.timeout_ms) == (task_id, name, timeout_ms)
    assert (received.args, received.kwargs) == (args, kwargs)


@given(numbers, st.sampled_from(OutcomeKind), texts, st.none() | texts, st.none() | texts, st.none() | texts)
def test_results(
    seq: int, kind: OutcomeKind, result: str, code: str | None, message: str | None, reason: str | None
) -> None:
    # An ok carries nothing but its result.
    ok = kind is OutcomeKind.OK
    report = Report(kind, result) if ok else Report(kind, result, code, message, reason, 15)
    frame = wire.encode_result(seq, report, 1.5, 2.5, 0.25, 77)
    assert wire.decode_result(frame) == (seq, report, 1.5, 2.5, 0.25, 77)


def test_error_texts_that_utf8_cannot_carry() -> None:
    report = Report(OutcomeKind.ERR, "{}", "A\ud800", "b\udfff", None)
    assert wire.decode_result(wire.encode_result(1, report, 0, 0, 0, 0))[1].error_code == "A?"


def test_the_small_frames() -> None:
    assert wire.decode_stop(wire.encode_stop(9, StopCode.TIMEOUT, interrupt=True)) == (9, StopCode.TIMEOUT, True)
    assert wire.decode_ready(wire.encode_ready(12, 34)) == (12, 34)
    assert wire.decode_progress(wire.encode_progress(5, '"ü"')) == (5, '"ü"')
    assert wire.decode_start_failed(wire.encode_start_failed("no\ud800")) == "no?"
    assert wire.unpack_tokens(wire.pack_tokens([1, 2**60])) == (1, 2**60)


@given(st.lists(st.integers(0, 400), min_size=1, max_size=8), st.randoms())
def test_a_stream_cut_anywhere(sizes: list[int], chance: object) -> None:
    frames = [wire.encode_progress(number, "x" * size) for number, size in enumerate(sizes)]
    stream = b"".join(frames)
    reader = FrameReader()
    found: list[tuple[int, bytes]] = []
    at = 0
    while at < len(stream):
        step = chance.randint(1, 300)  # type: ignore[attr-defined]
        found += reader.feed(stream[at : at + step])
        at += step
    assert found == [(FrameType.PROGRESS, frame) for frame in frames]
