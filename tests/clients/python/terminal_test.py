"""python -m longspan: what it prints, its exit codes, and that Ctrl-C ends an answer but not the conversation."""

import os
import signal
import subprocess
import sys
import threading

import grpc
import pytest

from fake_server import Failure


# python -m longspan, with Ctrl-C working also where a shell started the tests with SIGINT ignored
AS_MODULE = """
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("longspan", run_name="__main__", alter_sys=True)
"""
HANG_SECONDS = 60  # a program that hangs is killed: its test fails instead of waiting


@pytest.fixture
def start(fake, site):
    """start(*arguments) runs the program against the fake server."""
    running, watchdogs = [], []

    def run(*arguments):
        environment = {**os.environ, "PYTHONPATH": str(site), "LONGSPAN_SERVER": fake.address, "PYTHONUNBUFFERED": "1"}
        running.append(
            subprocess.Popen(
                [sys.executable, "-c", AS_MODULE, *arguments], env=environment, text=True,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            )
        )
        watchdogs.append(threading.Timer(HANG_SECONDS, running[-1].kill))
        watchdogs[-1].start()
        return running[-1]

    yield run
    for process, watchdog in zip(running, watchdogs):
        watchdog.cancel()
        process.kill()
        process.communicate()


def read_until(process, text):
    seen = ""
    while not seen.endswith(text):
        character = process.stdout.read(1)
        assert character, f"the program ended after {seen!r}: {process.stderr.read()}"
        seen += character
    return seen


def interrupt_until(process, text):
    """Repeats Ctrl-C: one that comes just before input() starts to read is only noticed by the next."""
    seen = threading.Event()

    def repeat():
        while not seen.wait(0.1):
            process.send_signal(signal.SIGINT)

    thread = threading.Thread(target=repeat)
    thread.start()
    try:
        read_until(process, text)
    finally:
        seen.set()
        thread.join()


def write_line(process, line):
    process.stdin.write(line + "\n")
    process.stdin.flush()


def test_generate_prints_the_answer(fake, start):
    fake.say("Hel", "lo é")
    output, errors = start("generate", "hi", "--max-tokens", "4", "--temperature", "0", "--stop", "x", "--stats").communicate()
    assert output == "Hello é\n" and "5 prompt" not in errors and "stop]" in errors
    request = fake.requests[0]
    assert (request.text, request.stop.max_tokens, list(request.stop.strings)) == ("hi", 4, ["x"])
    assert request.sampling.HasField("temperature") and not request.sampling.HasField("top_p")


def test_generate_reads_standard_input(fake, start):
    fake.say("ok")
    start("generate").communicate("two\nlines")
    assert fake.requests[0].text == "two\nlines"


def test_an_error_is_one_line_and_the_grpc_code(fake, start):
    fake.failure = Failure.of(grpc.StatusCode.RESOURCE_EXHAUSTED, "queue is full")
    process = start("generate", "hi")
    _, errors = process.communicate()
    assert process.returncode == 64 + 8
    assert errors == "longspan: RESOURCE_EXHAUSTED: queue is full\n"


def test_usage_errors_exit_2(start):
    process = start("generate", "hi", "--max-tokens", "many")
    process.communicate()
    assert process.returncode == 2


def test_chat_keeps_the_conversation(fake, start):
    fake.model_info.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    fake.say("blue")
    process = start("chat", "--system", "short")
    output, errors = process.communicate("sky?\ngrass?\n/new\nsea?\n")
    assert process.returncode == 0, errors
    assert output.count("blue\n") == 3
    asked = [request.text for request in fake.requests if hasattr(request, "text") and request.text]
    assert asked == [
        "system:short;user:sky?;",
        "system:short;user:sky?;assistant:blue;user:grass?;",
        "system:short;user:sea?;",
    ]


def test_ctrl_c_ends_the_answer_but_not_the_conversation(fake, start):
    fake.model_info.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    fake.say("part", finish=False)
    fake.hold = True
    process = start("chat")
    write_line(process, "first")
    read_until(process, "part")
    process.send_signal(signal.SIGINT)
    read_until(process, "[cancelled]\n")
    assert fake.client_left.wait(10), "the server still works on the answer"
    fake.hold = False
    fake.say("whole")
    write_line(process, "second")
    read_until(process, "whole\n> ")
    interrupt_until(process, "ends the conversation)\n")
    output, errors = process.communicate("")
    assert process.returncode == 0, errors
    assert fake.requests[-1].text == "user:first;assistant:part;user:second;"


def test_ctrl_c_ends_generate(fake, start):
    fake.say("part", finish=False)
    fake.hold = True
    process = start("generate", "hi")
    read_until(process, "part")
    process.send_signal(signal.SIGINT)
    process.communicate()
    assert process.returncode == 130 and fake.client_left.wait(10)


def test_an_error_in_chat_forgets_the_turn(fake, start):
    fake.model_info.chat_template = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"
    fake.failure = Failure.of(grpc.StatusCode.INVALID_ARGUMENT, "prompt: too long")
    process = start("chat")
    output, errors = process.communicate("long\nlong\n")
    assert process.returncode == 0 and errors.count("prompt: too long") == 2
    assert [request.text for request in fake.requests if getattr(request, "text", "")] == ["user:long;"] * 2


def test_a_model_without_a_template_is_said(start):
    process = start("chat")
    _, errors = process.communicate("hi\n")
    assert process.returncode == 2 and errors == "longspan: the model has no chat template\n"


def test_no_server_is_said(fake, start):
    fake.address = "127.0.0.1:1"
    process = start("generate", "hi")
    _, errors = process.communicate()
    assert process.returncode == 64 + 14 and errors.startswith("longspan: UNAVAILABLE: ")
