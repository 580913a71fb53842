"""Templates are bounded, and give the same text on every run."""

from __future__ import annotations

from pathlib import Path

import pytest

from openrecipes.errors import InputError
from openrecipes.rows import sandbox
from openrecipes.rows.encoder import Encoded, Encoder, EncoderSettings
from openrecipes.rows.refusals import Refusal
from tests.rows.given import TOKENIZER, talk

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}"
    "{% endfor %}"
)
#: Runs only for a conversation that says so: probes of the template do not see it.
ONLY_THEN = "{% if 'bomb' in messages[0].content %}#{% endif %}"
LOOP = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
BOMBS = {
    "loops": LOOP,
    "held loops": "{% set r = range(99999) %}" + LOOP.replace("range(99999)", "r"),
    "lazy loops": LOOP.replace("range(99999)", "(range(99999) | map('abs'))"),
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}"
    "{{ f(60) }}",
    "endless macro": "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}",
    "repetition": "{{ 'a' * 10 ** 9 }}",
    "list": "{{ (10 ** 9 * [1]) | length }}",
    "power": "{{ 10 ** (10 ** 9) }}",
    "random": "{{ range(100) | random }}",
    "lipsum": "{{ lipsum() }}",
}


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sandbox, "MOST_STEPS", 20_000)


def encoder(path: Path, source: str) -> Encoder:
    template = path / "t.jinja"
    template.write_text(source)
    return Encoder(EncoderSettings(TOKENIZER, template))


@pytest.mark.parametrize("bomb", BOMBS.values(), ids=BOMBS)
def test_a_template_that_would_not_end_is_refused(tmp_path: Path, bomb: str) -> None:
    with pytest.raises(InputError, match="chat template"):
        encoder(tmp_path, CHATML + bomb)
    made = encoder(tmp_path, CHATML + ONLY_THEN.replace("#", bomb)).encode_many(
        [talk("hi", "yo"), talk("a bomb", "yo"), talk("hi", "yo")]
    )
    assert [type(one) for one in made] == [Encoded, Refusal, Encoded]
    assert isinstance(made[1], Refusal) and made[1].reason == "template-error"


def test_steps_are_counted_for_each_conversation(tmp_path: Path) -> None:
    made = encoder(tmp_path, CHATML + "{% for a in range(15000) %}{% endfor %}")
    assert all(isinstance(one, Encoded) for one in made.encode_many([talk("hi", "yo")] * 3))


def test_a_count_changes_no_text(tmp_path: Path) -> None:
    """Loops with else, conditions and break; macros with defaults and a caller."""
    more = (
        "{% for a in [1, 2, 3] if a > 1 %}{{ loop.index }}{% if loop.last %}{% break %}{% endif %}"
        "{% else %}none{% endfor %}{% for a in [] %}x{% else %}none{% endfor %}"
        "{% macro f(a, b=2) %}[{{ a }}{{ b }}{{ caller() }}]{% endmacro %}"
        "{% call f(1) %}called{% endcall %}{% set ns = namespace(n=3 * 2) %}{{ ns.n ** 2 }}"
    )
    text = encoder(tmp_path, more + CHATML).template.render(talk("hi", "yo")["messages"]).text
    assert text.startswith("12none[12called]36<|im_start|>user\nhi")


@pytest.mark.parametrize("source", ["{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "{% if %}"])
def test_a_template_that_does_not_compile_is_one_error(tmp_path: Path, source: str) -> None:
    with pytest.raises(InputError, match="mend the chat template"):
        encoder(tmp_path, source)


def test_a_templates_own_words_are_one_line(tmp_path: Path) -> None:
    said = ONLY_THEN.replace("#", "{{ raise_exception('three\\nlines \\ud800') }}")
    (made,) = encoder(tmp_path, CHATML + said).encode_many([talk("a bomb", "yo")])
    assert isinstance(made, Refusal)
    assert made.detail == "TemplateError: three lines  "
