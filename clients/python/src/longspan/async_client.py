"""The asynchronous client: as client.py, on grpc.aio. Used by the event loop that made it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from longspan.chat_template import ChatTemplate
from longspan.client import CHANNEL_OPTIONS, DEFAULT_ADDRESS
from longspan.errors import LongspanError, error_of
from longspan.events import Event, event_of
from longspan.info import Load, ModelInfo, ServerInfo
from longspan.options import GenerateOptions, Prompt, generate_request, split_call_options
from longspan.v1 import inference_pb2 as pb
from longspan.v1 import inference_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Unpack


class AsyncGenerateStream(AsyncIterator[Event]):
    """Events of one request. Leaving the async with block, or dropping the stream, cancels what still runs."""

    def __init__(self, call):
        self._call = call
        self._cancelled = False

    async def __anext__(self) -> Event:
        while True:
            try:
                response = await self._call.read()
            except grpc.RpcError as error:
                raise error_of(error) from None
            except asyncio.CancelledError:
                if self._cancelled:  # cancel() was called; else the task itself is being cancelled
                    raise LongspanError(grpc.StatusCode.CANCELLED, "cancelled by this client") from None
                self.cancel()
                raise
            if response is grpc.aio.EOF:
                raise StopAsyncIteration
            event = event_of(response)
            if event is not None:
                return event

    def cancel(self) -> None:
        """The server stops within a step; further events end in LongspanError with CANCELLED."""
        self._cancelled = True
        self._call.cancel()

    async def __aenter__(self) -> AsyncGenerateStream:
        return self

    async def __aexit__(self, *exception) -> None:
        self.cancel()


class AsyncClient:
    """A connection to a server. address: HOST:PORT or unix:PATH. timeout: seconds, for calls other than generation."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout: float = 30.0):
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._timeout = timeout
        self._template: ChatTemplate | None = None

    async def close(self) -> None:
        await self._channel.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *exception) -> None:
        await self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> AsyncGenerateStream:
        """Streams the continuation of a text or of token ids; see GenerateOptions."""
        request_options, call = split_call_options(options)
        return AsyncGenerateStream(self._stub.Generate(generate_request(prompt, request_options), **call))

    async def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        template_arguments: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> AsyncGenerateStream:
        """Streams the next answer of a conversation: async for event in await client.chat(messages)."""
        prompt = await self.render_chat(messages, template_arguments)
        return self.generate(prompt, **{"add_special_tokens": False, "parse_special_tokens": True, **options})

    async def render_chat(
        self, messages: Iterable[Mapping[str, Any]], template_arguments: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt that chat() sends."""
        if self._template is None:
            info = await self.model_info()
            bos = [] if info.bos_token_id is None else [info.bos_token_id]
            tokens = [await self._token_text(ids) for ids in (bos, info.eos_token_ids[:1])]
            self._template = ChatTemplate(info.chat_template, *tokens)
        return self._template.render(messages, **(template_arguments or {}))

    async def abort(self, request_id: str) -> bool:
        """Ends a request; False when none of this id runs or waits."""
        return (await self._unary(self._stub.Abort, pb.AbortRequest(request_id=request_id))).found

    async def tokenize(
        self, text: str, *, add_special_tokens: bool | None = None, parse_special_tokens: bool | None = None
    ) -> list[int]:
        request = pb.TokenizeRequest(
            text=text, add_special_tokens=add_special_tokens, parse_special_tokens=parse_special_tokens
        )
        return list((await self._unary(self._stub.Tokenize, request)).token_ids)

    async def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool | None = None) -> str:
        request = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return (await self._unary(self._stub.Detokenize, request)).text

    async def model_info(self) -> ModelInfo:
        return ModelInfo.of(await self._unary(self._stub.GetModelInfo, pb.GetModelInfoRequest()))

    async def server_info(self) -> ServerInfo:
        return ServerInfo.of(await self._unary(self._stub.GetServerInfo, pb.GetServerInfoRequest()))

    async def load(self) -> Load:
        return Load.of(await self._unary(self._stub.GetLoad, pb.GetLoadRequest()))

    async def _token_text(self, ids) -> str:
        return await self.detokenize(ids, skip_special_tokens=False) if ids else ""

    async def _unary(self, method, request):
        try:
            return await method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise error_of(error) from None
