"""A gRPC server that answers what a test tells it to and remembers what it was asked. No model, no engine."""

import collections
import concurrent.futures
import threading

import grpc
from google.protobuf import any_pb2
from google.rpc import status_pb2

from longspan.v1 import inference_pb2 as pb
from longspan.v1 import inference_pb2_grpc

HOLD_SECONDS = 30  # a held stream that nobody cancels fails its test after this


class Failure(collections.namedtuple("Failure", ["code", "details", "trailing_metadata"]), grpc.Status):
    """A status to end a call with; details as the server attaches them."""

    @classmethod
    def of(cls, code, message, *details):
        if not details:
            return cls(code, message, ())
        packed = []
        for detail in details:
            packed.append(any_pb2.Any())
            packed[-1].Pack(detail)
        status = status_pb2.Status(code=code.value[0], message=message, details=packed)
        return cls(code, message, (("grpc-status-details-bin", status.SerializeToString()),))


class FakeServer(inference_pb2_grpc.InferenceServicer):
    """Generate sends `responses`, then holds until the client leaves when `hold`, then ends with `failure`, if any."""

    def __init__(self):
        self.requests = []
        self.metadata = []
        self.responses = []
        self.failure = None
        self.hold = False
        self.client_left = threading.Event()
        self.model_info = pb.GetModelInfoResponse(name="fake", vocab_size=512, eos_token_ids=[2])
        self.server_info = pb.GetServerInfoResponse(version="9", state=pb.SERVER_STATE_SERVING)
        self.load = pb.GetLoadResponse(running_requests=3)

    def __enter__(self):
        self._server = grpc.server(concurrent.futures.ThreadPoolExecutor(max_workers=8))
        inference_pb2_grpc.add_InferenceServicer_to_server(self, self._server)
        self.address = f"127.0.0.1:{self._server.add_insecure_port('127.0.0.1:0')}"
        self._server.start()
        return self

    def __exit__(self, *exception):
        self._server.stop(grace=None).wait()

    def say(self, *texts, finish=True):
        """The next answers: a Started, a chunk for each text, and the end."""
        self.responses = [pb.GenerateResponse(started=pb.Started(request_id="r1", prompt_tokens=5, seed=7))]
        self.responses += [pb.GenerateResponse(chunk=pb.Chunk(token_ids=[i], text=t)) for i, t in enumerate(texts)]
        if finish:
            finished = pb.Finished(reason=pb.FINISH_REASON_STOP, matched_token_id=2)
            self.responses.append(pb.GenerateResponse(finished=finished))

    def Generate(self, request, context):
        ended = threading.Event()

        def on_end():
            ended.set()
            if self.hold:  # gRPC may drop this generator at any yield: only the callback sees every leaver
                self.client_left.set()

        context.add_callback(on_end)
        self.requests.append(request)
        self.metadata.append(dict(context.invocation_metadata()))
        yield from self.responses
        if self.hold and ended.wait(HOLD_SECONDS):
            return
        self._fail(context)

    def Abort(self, request, context):
        self.requests.append(request)
        self._fail(context)
        return pb.AbortResponse(found=request.request_id == "r1")

    def Tokenize(self, request, context):
        self.requests.append(request)
        self._fail(context)
        return pb.TokenizeResponse(token_ids=[ord(c) for c in request.text])

    def Detokenize(self, request, context):
        self.requests.append(request)
        return pb.DetokenizeResponse(text="".join(f"<{token}>" for token in request.token_ids))

    def GetModelInfo(self, request, context):
        return self.model_info

    def GetServerInfo(self, request, context):
        return self.server_info

    def GetLoad(self, request, context):
        return self.load

    def _fail(self, context):
        if self.failure is not None:
            context.abort_with_status(self.failure)
