"""python -m longspan generate | chat: one streamed answer, or a conversation in the terminal.

Ctrl-C ends the answer that is being written, not the conversation. Exit codes: 0 ok, 2 usage, else the gRPC code + 64.
"""

from __future__ import annotations

import argparse
import os
import sys

from longspan.chat_template import ChatTemplateError
from longspan.client import DEFAULT_ADDRESS, Client
from longspan.errors import LongspanError
from longspan.events import Chunk, Finished, Queued

EXIT_INTERRUPTED = 130
EXIT_TEMPLATE = 2


def _parse(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m longspan", description="Client of longspan-server.")
    parser.add_argument(
        "--server",
        default=os.environ.get("LONGSPAN_SERVER", DEFAULT_ADDRESS),
        help="HOST:PORT or unix:PATH (LONGSPAN_SERVER; default %(default)s)",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    generate = commands.add_parser("generate", help="stream one answer")
    generate.add_argument("prompt", nargs="?", default="-", help="the prompt; - or nothing: standard input")
    chat = commands.add_parser("chat", help="a conversation in the terminal")
    chat.add_argument("--system", help="system message")
    for command in (generate, chat):
        command.add_argument("--max-tokens", type=int)
        command.add_argument("--temperature", type=float)
        command.add_argument("--top-p", type=float)
        command.add_argument("--top-k", type=int)
        command.add_argument("--seed", type=int)
        command.add_argument("--stop", action="append", help="stop string; may be repeated")
        command.add_argument("--stats", action="store_true", help="a line of figures after an answer")
    return parser.parse_args(arguments)


def _options(parsed: argparse.Namespace) -> dict:
    names = ("max_tokens", "temperature", "top_p", "top_k", "seed", "stop")
    return {name: getattr(parsed, name) for name in names}


def _write(stream, pieces: list[str], stats: bool) -> None:
    """Prints an answer while it comes; pieces keeps what was printed, also when it is interrupted."""
    for event in stream:
        if isinstance(event, Chunk):
            pieces.append(event.text)
            print(event.text, end="", flush=True)
        elif isinstance(event, Queued):
            print(f"[queued, {event.position} before it]", file=sys.stderr)
        elif isinstance(event, Finished):
            print(flush=True)
            if stats:
                print(_figures(event), file=sys.stderr)


def _figures(finished: Finished) -> str:
    usage, timings = finished.usage, finished.timings
    per_token = timings.time_per_output_token_seconds
    speed = f"{1.0 / per_token:.1f} tokens/s" if per_token > 0 else "-"
    return (
        f"[{usage.prompt_tokens} prompt tokens, {usage.cached_tokens} cached; {usage.completion_tokens} generated; "
        f"first token after {timings.time_to_first_token_seconds * 1e3:.0f} ms; {speed}; {finished.reason.value}]"
    )


def _report(error: Exception) -> None:
    print(f"longspan: {error}", file=sys.stderr)


def _generate(client: Client, parsed: argparse.Namespace) -> int:
    prompt = sys.stdin.read() if parsed.prompt == "-" else parsed.prompt
    try:
        with client.generate(prompt, **_options(parsed)) as stream:
            _write(stream, [], parsed.stats)
    except LongspanError as error:
        _report(error)
        return 64 + error.code.value[0]
    except KeyboardInterrupt:
        print()
        return EXIT_INTERRUPTED
    return 0


def _answer(client: Client, parsed: argparse.Namespace, messages: list[dict]) -> str | None:
    """The text of the next answer, cut where Ctrl-C came; None when there is none."""
    pieces: list[str] = []
    try:
        with client.chat(messages, **_options(parsed)) as stream:
            _write(stream, pieces, parsed.stats)
    except KeyboardInterrupt:
        print("\n[cancelled]", flush=True)
    except LongspanError as error:
        print()
        _report(error)
    return "".join(pieces) or None


def _read_question() -> str | None:
    """None at the end of the input."""
    try:
        return input("> ").strip()
    except EOFError:
        return None
    except KeyboardInterrupt:
        print("\n(Ctrl-D ends the conversation)")
        return ""


def _chat(client: Client, parsed: argparse.Namespace) -> int:
    if sys.stdin.isatty():
        import readline  # noqa: F401  line editing and history for input()
    start = [{"role": "system", "content": parsed.system}] if parsed.system else []
    messages = list(start)
    try:
        print(f"{client.model_info().name} on {parsed.server}. Ctrl-C ends an answer, /new forgets, Ctrl-D leaves.")
    except LongspanError as error:
        _report(error)
        return 64 + error.code.value[0]
    while (question := _read_question()) is not None:
        if question == "/new":
            messages = list(start)
        elif question:
            messages.append({"role": "user", "content": question})
            answer = _answer(client, parsed, messages)
            if answer is None:
                messages.pop()  # nothing was said: the turn did not happen
            else:
                messages.append({"role": "assistant", "content": answer})
    print()
    return 0


def main(arguments: list[str] | None = None) -> int:
    parsed = _parse(arguments)
    with Client(parsed.server) as client:
        try:
            return (_chat if parsed.command == "chat" else _generate)(client, parsed)
        except ChatTemplateError as error:
            _report(error)
            return EXIT_TEMPLATE


if __name__ == "__main__":
    sys.exit(main())
