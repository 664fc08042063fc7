"""Client of longspan-server: streamed generation and chat, sync (Client) and async (AsyncClient)."""

from longspan.async_client import AsyncClient, AsyncGenerateStream
from longspan.chat_template import ChatTemplate, ChatTemplateError
from longspan.client import Client, GenerateStream
from longspan.errors import FieldViolation, LongspanError
from longspan.events import (
    Chunk,
    Event,
    Finished,
    FinishReason,
    PromptLogprobs,
    Queued,
    Started,
    Timings,
    TokenLogprobs,
    TopLogprob,
    Usage,
)
from longspan.info import Device, Load, ModelInfo, ServerInfo, ServerState
from longspan.options import GenerateOptions

__all__ = [
    "AsyncClient",
    "AsyncGenerateStream",
    "ChatTemplate",
    "ChatTemplateError",
    "Chunk",
    "Client",
    "Device",
    "Event",
    "FieldViolation",
    "FinishReason",
    "Finished",
    "GenerateOptions",
    "GenerateStream",
    "Load",
    "LongspanError",
    "ModelInfo",
    "PromptLogprobs",
    "Queued",
    "ServerInfo",
    "ServerState",
    "Started",
    "Timings",
    "TokenLogprobs",
    "TopLogprob",
    "Usage",
]
