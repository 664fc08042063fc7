"""The Python client against the real server and the real model. Runs where LONGSPAN_SERVER_BINARY names a server and
the model is there (LONGSPAN_TEST_MODEL, else where scripts/fetch-model puts it).
"""

import os
import pathlib
import signal
import subprocess
import time

import grpc
import pytest

from longspan import Chunk, Client, Finished, FinishReason, LongspanError, ServerState, Started

BINARY = os.environ.get("LONGSPAN_SERVER_BINARY", "")
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
DEFAULT_MODEL = CACHE / "longspan" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = pathlib.Path(os.environ.get("LONGSPAN_TEST_MODEL") or DEFAULT_MODEL)
START_SECONDS = 120

if not os.path.exists(BINARY):
    pytest.skip("no server: set LONGSPAN_SERVER_BINARY", allow_module_level=True)
if not MODEL.exists():
    pytest.skip("no model: run scripts/fetch-model", allow_module_level=True)


@pytest.fixture(scope="module")
def client(tmp_path_factory):
    folder = tmp_path_factory.mktemp("server")
    ready = folder / "ready"
    process = subprocess.Popen(
        [BINARY, "--model", str(MODEL), "--listen", "127.0.0.1:0", "--metrics-listen", "off", "--max-model-len", "2048",
         "--admin-listen", f"unix:{folder}/admin.sock", "--ready-file", str(ready), "--log-level", "warn"]
    )
    deadline = time.monotonic() + START_SECONDS
    while not ready.exists():
        assert process.poll() is None and time.monotonic() < deadline, "the server did not start"
        time.sleep(0.05)
    address = dict(line.split(" ", 1) for line in ready.read_text().splitlines())["listen"]
    with Client(address) as connected:
        yield connected
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=60) == 0


def test_chat_answers_a_question(client):
    events = list(client.chat([{"role": "user", "content": "What is the capital of France?"}], temperature=0, max_tokens=40))
    text = "".join(event.text for event in events if isinstance(event, Chunk))
    assert "Paris" in text
    assert isinstance(events[0], Started) and isinstance(events[-1], Finished)
    ids = [token for event in events if isinstance(event, Chunk) for token in event.token_ids]
    assert events[-1].usage.completion_tokens == len(ids)
    assert events[0].prompt_tokens == len(
        client.tokenize(
            client.render_chat([{"role": "user", "content": "What is the capital of France?"}]),
            add_special_tokens=False, parse_special_tokens=True,
        )
    )


def test_the_template_of_the_model_is_chatml(client):
    prompt = client.render_chat([{"role": "system", "content": "S"}, {"role": "user", "content": "U"}])
    assert prompt == "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nU<|im_end|>\n<|im_start|>assistant\n"


def test_text_and_ids_are_the_same_prompt(client):
    text = "The quick brown fox"

    def run(prompt):
        chunks = [event for event in client.generate(prompt, temperature=0, max_tokens=8) if isinstance(event, Chunk)]
        return [token for chunk in chunks for token in chunk.token_ids]

    assert run(text) == run(client.tokenize(text))
    assert client.detokenize(client.tokenize(text)) == text


def test_a_wrong_field_is_named_by_the_server(client):
    with pytest.raises(LongspanError) as caught:
        list(client.generate("hi", top_p=7.0))
    assert caught.value.code is grpc.StatusCode.INVALID_ARGUMENT
    assert [violation.field for violation in caught.value.field_violations] == ["sampling.top_p"]


def test_leaving_a_stream_frees_its_blocks(client):
    with client.generate("Count: 1, 2, 3,", max_tokens=1500, ignore_eos=True) as stream:
        next(event for event in stream if isinstance(event, Chunk))
    deadline = time.monotonic() + 10
    while client.load().used_blocks and time.monotonic() < deadline:
        time.sleep(0.02)
    load = client.load()
    assert (load.running_requests, load.waiting_requests, load.used_blocks) == (0, 0, 0)


def test_abort_ends_a_request_with_its_reason(client):
    stream = client.generate("Count: 1, 2, 3,", max_tokens=1500, ignore_eos=True, request_id="to-abort")
    next(event for event in stream if isinstance(event, Chunk))
    assert client.abort("to-abort") and not client.abort("never-seen")
    last = list(stream)[-1]
    assert isinstance(last, Finished) and last.reason is FinishReason.ABORTED


def test_the_server_says_what_it_is(client):
    info, model = client.server_info(), client.model_info()
    assert info.state is ServerState.SERVING and info.flags["max-model-len"] == "2048"
    assert (model.architecture, model.vocab_size, model.context_length) == ("llama", 49152, 2048)
    assert model.eos_token_ids == (2,)
