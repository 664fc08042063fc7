"""Keyword options of generate() and chat(), and how they become a GenerateRequest. An option left out, or None,
stays unset on the wire: the server's default applies. Ranges are checked by the server, which names the field.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Union

from longspan.v1 import inference_pb2 as pb

Prompt = Union[str, Iterable[int]]  # text, or token ids


class GenerateOptions(TypedDict, total=False):
    request_id: str | None
    model: str | None
    add_special_tokens: bool | None
    parse_special_tokens: bool | None
    n: int | None
    priority: int | None
    cache_salt: bytes | str | None
    prefix_cache: Literal["use", "bypass"] | None
    reservation: Literal["preemptible", "guaranteed"] | None
    # how tokens are chosen
    temperature: float | None
    top_k: int | None
    top_p: float | None
    min_p: float | None
    repetition_penalty: float | None
    presence_penalty: float | None
    frequency_penalty: float | None
    seed: int | None
    logit_bias: Mapping[int, float] | None
    allowed_token_ids: Sequence[int] | None
    bad_words: Sequence[str] | None
    # when a sequence ends
    max_tokens: int | None
    min_tokens: int | None
    stop: str | Sequence[str] | None
    stop_token_ids: Sequence[int] | None
    ignore_eos: bool | None
    include_stop_in_output: bool | None
    # what chunks carry
    return_text: bool | None
    return_token_ids: bool | None
    skip_special_tokens: bool | None
    logprobs: int | None
    prompt_logprobs: int | None
    # of the call
    timeout: float | None  # seconds; becomes the gRPC deadline
    metadata: Sequence[tuple[str, str]] | None  # "traceparent" and the like


# option -> (message inside the request or "", field)
_FIELDS = {
    "request_id": ("", "request_id"),
    "model": ("", "model"),
    "add_special_tokens": ("", "add_special_tokens"),
    "parse_special_tokens": ("", "parse_special_tokens"),
    "n": ("", "n"),
    "priority": ("", "priority"),
    "temperature": ("sampling", "temperature"),
    "top_k": ("sampling", "top_k"),
    "top_p": ("sampling", "top_p"),
    "min_p": ("sampling", "min_p"),
    "repetition_penalty": ("sampling", "repetition_penalty"),
    "presence_penalty": ("sampling", "presence_penalty"),
    "frequency_penalty": ("sampling", "frequency_penalty"),
    "seed": ("sampling", "seed"),
    "max_tokens": ("stop", "max_tokens"),
    "min_tokens": ("stop", "min_tokens"),
    "ignore_eos": ("stop", "ignore_eos"),
    "include_stop_in_output": ("stop", "include_stop_in_output"),
    "return_text": ("output", "text"),
    "return_token_ids": ("output", "token_ids"),
    "skip_special_tokens": ("output", "skip_special_tokens"),
    "logprobs": ("output", "logprobs"),
    "prompt_logprobs": ("output", "prompt_logprobs"),
}
_LISTS = {
    "allowed_token_ids": ("sampling", "allowed_token_ids"),
    "bad_words": ("sampling", "bad_words"),
    "stop": ("stop", "strings"),
    "stop_token_ids": ("stop", "token_ids"),
}
_CHOICES = {
    "prefix_cache": {"use": pb.PREFIX_CACHE_POLICY_USE, "bypass": pb.PREFIX_CACHE_POLICY_BYPASS},
    "reservation": {"preemptible": pb.RESERVATION_PREEMPTIBLE, "guaranteed": pb.RESERVATION_GUARANTEED},
}
_CALL = ("timeout", "metadata")


def split_call_options(options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """(options of the request, timeout and metadata of the call)."""
    request = {name: value for name, value in options.items() if name not in _CALL}
    call = {name: options.get(name) for name in _CALL}
    return request, call


def generate_request(prompt: Prompt, options: Mapping[str, Any]) -> pb.GenerateRequest:
    request = pb.GenerateRequest()
    if isinstance(prompt, str):
        request.text = prompt
    else:
        request.token_ids.ids.extend(operator.index(token) for token in prompt)
        request.token_ids.SetInParent()  # an empty list is still token ids: the server says what is wrong
    for name, value in options.items():
        if value is None and name in GenerateOptions.__annotations__:
            continue
        _set_option(request, name, value)
    return request


def _set_option(request: pb.GenerateRequest, name: str, value: Any) -> None:
    if name in _FIELDS:
        message, field = _FIELDS[name]
        setattr(getattr(request, message) if message else request, field, value)
    elif name in _LISTS:
        message, field = _LISTS[name]
        values = [value] if isinstance(value, str) else value
        getattr(getattr(request, message), field).extend(values)
    elif name in _CHOICES:
        if value not in _CHOICES[name]:
            raise ValueError(f"{name}: {value!r} is not one of {', '.join(_CHOICES[name])}")
        setattr(request, name, _CHOICES[name][value])
    elif name == "logit_bias":
        request.sampling.logit_bias.update(value)
    elif name == "cache_salt":
        request.cache_salt = value.encode() if isinstance(value, str) else value
    else:
        raise TypeError(f"unknown option {name!r}")
