"""The synchronous client. Thread-safe: one client serves all threads, over one connection."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import grpc

from longspan.chat_template import ChatTemplate
from longspan.errors import error_of
from longspan.events import Event, event_of
from longspan.info import Load, ModelInfo, ServerInfo
from longspan.options import GenerateOptions, Prompt, generate_request, split_call_options
from longspan.v1 import inference_pb2 as pb
from longspan.v1 import inference_pb2_grpc

if TYPE_CHECKING:
    from typing_extensions import Unpack

DEFAULT_ADDRESS = "127.0.0.1:50051"
# Messages of any size, both ways: the server has its own limit and says so.
CHANNEL_OPTIONS = (("grpc.max_receive_message_length", -1), ("grpc.max_send_message_length", -1))


class GenerateStream(Iterator[Event]):
    """Events of one request. Leaving the with block, or dropping the stream, cancels what still runs."""

    def __init__(self, call):
        self._call = call

    def __next__(self) -> Event:
        while True:
            try:
                event = event_of(next(self._call))
            except grpc.RpcError as error:
                raise error_of(error) from None
            if event is not None:
                return event

    def cancel(self) -> None:
        """The server stops within a step; further events end in LongspanError with CANCELLED."""
        self._call.cancel()

    def __enter__(self) -> GenerateStream:
        return self

    def __exit__(self, *exception) -> None:
        self.cancel()

    def __del__(self):
        self._call.cancel()


class Client:
    """A connection to a server. address: HOST:PORT or unix:PATH. timeout: seconds, for calls other than generation."""

    def __init__(self, address: str = DEFAULT_ADDRESS, *, timeout: float = 30.0):
        self._channel = grpc.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = inference_pb2_grpc.InferenceStub(self._channel)
        self._timeout = timeout
        self._template: ChatTemplate | None = None  # made when first asked for; a race makes it twice

    def close(self) -> None:
        self._channel.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *exception) -> None:
        self.close()

    def generate(self, prompt: Prompt, **options: Unpack[GenerateOptions]) -> GenerateStream:
        """Streams the continuation of a text or of token ids; see GenerateOptions."""
        request_options, call = split_call_options(options)
        return GenerateStream(self._stub.Generate(generate_request(prompt, request_options), **call))

    def chat(
        self,
        messages: Iterable[Mapping[str, Any]],
        template_arguments: Mapping[str, Any] | None = None,
        **options: Unpack[GenerateOptions],
    ) -> GenerateStream:
        """Streams the next answer of a conversation: [{"role": "user", "content": "..."}, ...]."""
        prompt = self.render_chat(messages, template_arguments)
        return self.generate(prompt, **{"add_special_tokens": False, "parse_special_tokens": True, **options})

    def render_chat(
        self, messages: Iterable[Mapping[str, Any]], template_arguments: Mapping[str, Any] | None = None
    ) -> str:
        """The prompt that chat() sends."""
        if self._template is None:
            info = self.model_info()
            bos = [] if info.bos_token_id is None else [info.bos_token_id]
            tokens = [self._token_text(ids) for ids in (bos, info.eos_token_ids[:1])]
            self._template = ChatTemplate(info.chat_template, *tokens)
        return self._template.render(messages, **(template_arguments or {}))

    def abort(self, request_id: str) -> bool:
        """Ends a request; False when none of this id runs or waits."""
        return self._unary(self._stub.Abort, pb.AbortRequest(request_id=request_id)).found

    def tokenize(
        self, text: str, *, add_special_tokens: bool | None = None, parse_special_tokens: bool | None = None
    ) -> list[int]:
        request = pb.TokenizeRequest(
            text=text, add_special_tokens=add_special_tokens, parse_special_tokens=parse_special_tokens
        )
        return list(self._unary(self._stub.Tokenize, request).token_ids)

    def detokenize(self, token_ids: Iterable[int], *, skip_special_tokens: bool | None = None) -> str:
        request = pb.DetokenizeRequest(token_ids=token_ids, skip_special_tokens=skip_special_tokens)
        return self._unary(self._stub.Detokenize, request).text

    def model_info(self) -> ModelInfo:
        return ModelInfo.of(self._unary(self._stub.GetModelInfo, pb.GetModelInfoRequest()))

    def server_info(self) -> ServerInfo:
        return ServerInfo.of(self._unary(self._stub.GetServerInfo, pb.GetServerInfoRequest()))

    def load(self) -> Load:
        return Load.of(self._unary(self._stub.GetLoad, pb.GetLoadRequest()))

    def _token_text(self, ids) -> str:
        return self.detokenize(ids, skip_special_tokens=False) if ids else ""

    def _unary(self, method, request):
        try:
            return method(request, timeout=self._timeout)
        except grpc.RpcError as error:
            raise error_of(error) from None
