"""Chat templates: rendered as transformers renders them, in a sandbox."""

import datetime

import pytest

from longspan import ChatTemplate, ChatTemplateError

# The ChatML template of SmolLM2-135M-Instruct, and what transformers makes of it.
SMOLLM2 = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a "
    "helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] "
    "+ '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' "
    "}}{% endif %}"
)
USER = {"role": "user", "content": "Hi"}


def test_chatml_with_the_models_own_system_message():
    assert ChatTemplate(SMOLLM2).render([USER]) == (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n"
        "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
    )


def test_chatml_with_a_conversation():
    messages = [{"role": "system", "content": "S"}, USER, {"role": "assistant", "content": "A"}, USER]
    expected = "".join(f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages)
    assert ChatTemplate(SMOLLM2).render(messages) == expected + "<|im_start|>assistant\n"
    assert ChatTemplate(SMOLLM2).render(messages, add_generation_prompt=False) == expected


def test_blocks_leave_no_white_space():
    # trim_blocks: no newline after a block; lstrip_blocks: no indent before it
    source = "{% for m in messages %}\n    {% if true %}\n{{ m.content }}\n    {% endif %}\n{% endfor %}\n"
    assert ChatTemplate(source).render([USER, USER]) == "Hi\nHi\n"


@pytest.mark.parametrize(
    "source, text",
    [
        ("{{ bos_token }}|{{ eos_token }}", "<s>|</s>"),
        ("{{ unknown_token }}{{ tools is none }}", "True"),
        ("{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}", "01"),
        ("{% generation %}{{ messages[0].content }}{% endgeneration %}", "Hi"),
        ("{{ {'a': '<é>'} | tojson }}", '{"a": "<é>"}'),
        ("{{ messages[0]['content'] | upper }}{{ '&' }}", "HI&"),
        ("{% set ns = namespace(n=1) %}{% set ns.n = 2 %}{{ ns.n }}", "2"),
    ],
)
def test_what_templates_in_the_field_use(source, text):
    assert ChatTemplate(source, "<s>", "</s>").render([USER]) == text


def test_strftime_now_is_today():
    before = datetime.date.today()
    shown = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}").render([USER])
    assert before <= datetime.date.fromisoformat(shown) <= datetime.date.today()


def test_arguments_reach_the_template():
    assert ChatTemplate("{{ enable_thinking }}").render([USER], enable_thinking=False) == "False"


def test_the_template_may_refuse_messages():
    with pytest.raises(ChatTemplateError, match="no system role"):
        ChatTemplate("{{ raise_exception('no system role') }}").render([USER])


def test_a_missing_template_is_said():
    with pytest.raises(ChatTemplateError, match="no chat template"):
        ChatTemplate("")


def test_a_broken_template_is_said():
    with pytest.raises(ChatTemplateError, match="does not compile"):
        ChatTemplate("{% for %}")


@pytest.mark.parametrize(
    "source",
    [
        "{{ ''.__class__.__mro__[1].__subclasses__() }}",
        "{{ raise_exception.__globals__.os }}",
        "{{ strftime_now.__globals__['datetime'].sys.modules }}",
        "{{ messages.append({}) }}",
        "{{ messages[0].update({'role': 'system'}) }}",
        "{{ cycler.__init__.__globals__.os.system('true') }}",
        "{{ '{0.__class__.__mro__}'.format(1) }}",
        "{% include '/etc/passwd' %}",
        "{% import 'os' as os %}{{ os }}",
        "{{ range(10000000) | list }}",
        "{{ messages[0].content + 1 }}",
    ],
)
def test_a_hostile_template_reaches_nothing(source):
    message = dict(USER)
    with pytest.raises(ChatTemplateError):
        ChatTemplate(source).render([message])
    assert message == USER
