"""A model's chat template: Jinja source that turns messages into a prompt, rendered as transformers renders it.

The source comes out of a model file, so it runs in Jinja's immutable sandbox: no attributes of Python objects, no files.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterable, Mapping
from typing import Any

import jinja2
import jinja2.ext
import jinja2.nodes
import jinja2.sandbox


class ChatTemplateError(ValueError):
    """The template is missing or broken, or refuses these messages."""


class _GenerationBlock(jinja2.ext.Extension):
    """{% generation %} marks what the model wrote, for training; to a prompt it means nothing."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body, lineno=line)


def _raise_exception(message: str):
    raise jinja2.exceptions.TemplateError(message)


def _strftime_now(form: str) -> str:
    return datetime.datetime.now().strftime(form)


def _tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False) -> str:
    # Jinja's own filter escapes <, > and & for HTML.
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


class ChatTemplate:
    """Compiled once; render() may be called from any thread."""

    def __init__(self, source: str, bos_token: str = "", eos_token: str = ""):
        if not source:
            raise ChatTemplateError("the model has no chat template")
        environment = jinja2.sandbox.ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, _GenerationBlock]
        )
        environment.filters["tojson"] = _tojson
        environment.globals["raise_exception"] = _raise_exception
        environment.globals["strftime_now"] = _strftime_now
        try:
            self._template = environment.from_string(source)
        except jinja2.TemplateError as error:
            raise ChatTemplateError(f"the chat template does not compile: {error}") from error
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}

    def render(self, messages: Iterable[Mapping[str, Any]], **arguments: Any) -> str:
        """The prompt for the next answer. arguments: what this template knows besides (tools, enable_thinking, ...)."""
        values = {"tools": None, "documents": None, "add_generation_prompt": True, **self._tokens, **arguments}
        try:
            return self._template.render(messages=[dict(message) for message in messages], **values)
        except Exception as error:  # foreign code: it fails in any way that Python code can
            raise ChatTemplateError(f"the chat template refused the messages: {error}") from error
