"""Chat templates render as transformers renders them, and cannot break out."""

import tracemalloc

import pytest

from quire.server.text.chat_template import ChatTemplate, TemplateRefused, compile_template

MESSAGES = [{"role": "user", "content": " hi "}, {"role": "assistant", "content": "<&> é"}]

TEMPLATES = [
    "{{ bos_token }}{% for m in messages %}[{{ m['role'] }}]{{ m.content }}{% endfor %}",
    "{% for m in messages %}\n    {{ m.content | trim }}\n{% endfor %}\n",
    "{% if add_generation_prompt %}yes{% endif %}{{ messages | tojson(indent=2) }}",
    "{% set x = namespace(n=0) %}{% for m in messages %}{% set x.n = x.n + 1 %}{% endfor %}{{x.n}}",
    "{% for m in messages %}{% if loop.last %}{% break %}{% endif %}{{ m.role }}{% endfor %}!",
    "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}",
    "{{ dict(a=1)['a'] }}{{ tools is none }}{{ mood | default('calm') }}",
]


def render(template: ChatTemplate, *, continues: bool = False, **extra: str) -> str:
    return template.render(
        MESSAGES, add_generation_prompt=True, continue_final_message=continues, extra=extra
    )


@pytest.mark.parametrize("source", TEMPLATES)
def test_rendering_equals_transformers(source: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    rendered = render_jinja_template(
        [MESSAGES], chat_template=source, add_generation_prompt=True, bos_token="<s>", mood="glad"
    )[0]
    assert render(compile_template(source, {"bos_token": "<s>"}), mood="glad") == rendered[0]


@pytest.mark.parametrize("tail", ["", "|trim"])
def test_continuing_equals_transformers(tail: str) -> None:
    from transformers.utils.chat_template_utils import render_jinja_template

    source = "{% for m in messages %}[{{ m.content" + tail + " }}]{% endfor %}"
    rendered = render_jinja_template([MESSAGES], chat_template=source, continue_final_message=True)[
        0
    ]
    assert render(compile_template(source, {}), continues=True) == rendered[0]


@pytest.mark.parametrize(
    "source",
    [
        "{{ raise_exception('no') }}",
        "{{ messages.__class__.__mro__ }}",
        "{{ ''.__class__ }}",
        "{{ messages.append(1) }}",
        "{{ namespace(__class__=1) }}",
        "{{ raise_exception.__globals__ }}",
        "{{ missing.attribute }}",
        "{{ 1 / 0 }}",
        "{% for i in range(1000000) %}{% endfor %}",
    ],
)
def test_bad_templates_are_refusals(source: str) -> None:
    template = compile_template(source, {})
    try:
        assert render(template) == ""  # an unsafe attribute is undefined, and prints as nothing
    except TemplateRefused:
        pass


def test_what_the_template_says_is_told() -> None:
    with pytest.raises(TemplateRefused, match="roles must alternate"):
        render(compile_template("{{ raise_exception('roles must alternate') }}", {}))


def test_callers_cannot_replace_messages() -> None:
    template = compile_template("{{ messages | length }}", {})
    assert render(template, messages="x") == "2"


@pytest.mark.parametrize(
    ("source", "reads"),
    [
        ("{{ mood }}", True),
        ("{% if mood is defined %}x{% endif %}", True),
        ("{% if not mood is defined %}{% set mood = 'calm' %}{% endif %}{{ mood }}", True),
        ("{% macro f() %}{{ mood }}{% endmacro %}{{ f() }}", True),
        ("{% generation %}{{ mood }}{% endgeneration %}", True),
        ("mood", False),
        ("{% set mood = 'calm' %}{{ mood }}", False),
        ("{% for mood in messages %}{{ mood }}{% endfor %}", False),
    ],
)
def test_names_that_a_template_reads_are_known(source: str, reads: bool) -> None:
    template = compile_template(source, {})
    assert template.unread(["mood", "absent"]) == ["absent"] + ["mood"] * (not reads)
    assert reads == (render(template, mood="glad") != render(template))


def test_broken_template_is_found_when_compiled() -> None:
    with pytest.raises(TemplateRefused, match="broken"):
        compile_template("{% if %}", {})


def test_final_message_must_be_shown_to_be_continued() -> None:
    with pytest.raises(TemplateRefused, match="final message"):
        render(compile_template("nothing", {}), continues=True)


@pytest.mark.parametrize("source", ["{{ 'a' * 10 ** 8 }}", "{{ 'a' | center(10 ** 8) }}"])
def test_nothing_is_computed_while_a_template_is_compiled(source: str) -> None:
    """No bound holds then for a model's own template."""
    tracemalloc.start()
    compile_template(source, {})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10**7
