"""What a Generate stream yields, as plain values. The order is Queued?, Started, then PromptLogprobs and Chunk,
and Finished once for each sequence that ended by itself; docs of each field stand in proto/longspan/v1/inference.proto.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import Union

from longspan.v1 import inference_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True)
class Queued:
    """The request has to wait."""

    position: int
    estimated_delay_seconds: float | None  # None before the server has measurements


@dataclasses.dataclass(frozen=True, slots=True)
class Started:
    """First scheduling of the request."""

    request_id: str
    prompt_tokens: int
    cached_tokens: int
    seed: int


@dataclasses.dataclass(frozen=True, slots=True)
class TopLogprob:
    token_id: int
    logprob: float


@dataclasses.dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural-log probabilities at one position, before sampling transforms."""

    token_id: int
    logprob: float | None  # None for a prompt's first token
    top: tuple[TopLogprob, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class Chunk:
    """New tokens of one sequence. Text is whole characters and may lag behind the ids."""

    index: int
    token_ids: tuple[int, ...]
    text: str
    logprobs: tuple[TokenLogprobs, ...]


@dataclasses.dataclass(frozen=True, slots=True)
class PromptLogprobs:
    """Log-probabilities of prompt tokens from position start on."""

    start: int
    entries: tuple[TokenLogprobs, ...]


class FinishReason(enum.Enum):
    STOP = "stop"
    LENGTH = "length"
    ABORTED = "aborted"


@dataclasses.dataclass(frozen=True, slots=True)
class Usage:
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int


@dataclasses.dataclass(frozen=True, slots=True)
class Timings:
    queue_seconds: float
    prefill_seconds: float
    time_to_first_token_seconds: float
    time_per_output_token_seconds: float
    kv_bytes_read: int


@dataclasses.dataclass(frozen=True, slots=True)
class Finished:
    """The end of one sequence. matched_stop: a token id, a stop string, or None."""

    index: int
    reason: FinishReason
    matched_stop: int | str | None
    usage: Usage
    timings: Timings


Event = Union[Queued, Started, Chunk, PromptLogprobs, Finished]

_REASONS = {
    pb.FINISH_REASON_STOP: FinishReason.STOP,
    pb.FINISH_REASON_LENGTH: FinishReason.LENGTH,
    pb.FINISH_REASON_ABORTED: FinishReason.ABORTED,
}


def _logprobs(entries) -> tuple[TokenLogprobs, ...]:
    return tuple(
        TokenLogprobs(
            entry.token_id,
            entry.logprob if entry.HasField("logprob") else None,
            tuple(TopLogprob(top.token_id, top.logprob) for top in entry.top),
        )
        for entry in entries
    )


def _finished(message: pb.Finished) -> Finished:
    matched = message.WhichOneof("matched_stop")
    timings = message.timings
    return Finished(
        message.index,
        _REASONS[message.reason],
        getattr(message, matched) if matched else None,
        Usage(message.usage.prompt_tokens, message.usage.cached_tokens, message.usage.completion_tokens),
        Timings(
            timings.queue_seconds,
            timings.prefill_seconds,
            timings.time_to_first_token_seconds,
            timings.time_per_output_token_seconds,
            timings.kv_bytes_read,
        ),
    )


def event_of(response: pb.GenerateResponse) -> Event | None:
    """None for an event that a newer server knows and this client does not."""
    kind = response.WhichOneof("event")
    if kind == "chunk":
        chunk = response.chunk
        return Chunk(chunk.index, tuple(chunk.token_ids), chunk.text, _logprobs(chunk.logprobs))
    if kind == "queued":
        queued = response.queued
        delay = queued.estimated_delay_seconds if queued.HasField("estimated_delay_seconds") else None
        return Queued(queued.position, delay)
    if kind == "started":
        started = response.started
        return Started(started.request_id, started.prompt_tokens, started.cached_tokens, started.seed)
    if kind == "prompt_logprobs":
        return PromptLogprobs(response.prompt_logprobs.start, _logprobs(response.prompt_logprobs.entries))
    if kind == "finished":
        return _finished(response.finished)
    return None
