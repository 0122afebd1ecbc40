# Records what jinja2 renders from chat templates, in the environment of Hugging Face's transformers.
# Usage: python templates.py > test/data/templates.json
# With files as arguments (templates, or tokenizer_config.json), their renders instead, for a comparison by hand.
import json
import sys
from datetime import datetime

import jinja2
from jinja2.ext import Extension, do, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment


class Generation(Extension):
    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def raise_exception(message):
    raise jinja2.exceptions.TemplateError(message)


def tojson(value, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols, do])
environment.filters["tojson"] = tojson
environment.globals["raise_exception"] = raise_exception
environment.globals["strftime_now"] = lambda form: datetime(2024, 11, 30, 12, 5, 9).strftime(form)

system = {"role": "system", "content": "You are brief."}
CONVERSATIONS = {
    "one question": [{"role": "user", "content": "Hello!"}],
    "spaces": [{"role": "user", "content": "  keep me  \n"}],
    "system": [system, {"role": "user", "content": " Why? "}],
    "empty system": [{"role": "system", "content": ""}, {"role": "user", "content": "Hi"}],
    "indented answer": [
        system,
        {"role": "user", "content": "Write code."},
        {"role": "assistant", "content": "<think>\nshort\n</think>\n\n    def f():\n        return 1\n"},
        {"role": "user", "content": "Again,\n  please."},
    ],
    "many turns": [turn for i in range(4) for turn in (
        {"role": "user", "content": f"Question {i}: {{x}} {{{{ y }}}} 'a' \"b\""},
        {"role": "assistant", "content": f"  Answer {i}\n\n"},
    )] + [{"role": "user", "content": "漢字 😀 é"}],
}
VARIABLES = [{}, {"enable_thinking": False}, {"add_generation_prompt": False}]

# Each template has the constructs that templates of a family have in common, in words of our own.
TEMPLATES = {
    "chatml": """{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system
Be kind.<|im_end|>
' }}{% endif %}{{'<|im_start|>' + message['role'] + '
' + message['content'] + '<|im_end|>' + '
'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant
' }}{% endif %}""",
    "thinking history (qwen)": r"""{%- set ns = namespace(last=-1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages|length - 1) - loop.index0 %}
    {%- if ns.last == -1 and message.role == "user" and message.content is string %}
        {%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {%- if loop.index0 > ns.last %}
            {{- '<|im_start|>' + message.role + '\n<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- '<|im_start|>' + message.role + '\n' + content }}
        {%- endif %}
        {{- '<|im_end|>\n' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>' + '\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\n' }}
    {%- if enable_thinking is defined and enable_thinking is false %}
        {{- '<think>\n\n</think>\n\n' }}
    {%- endif %}
{%- endif %}""",
    "system or false (cohere)": """{{ bos_token }}{% if messages[0]['role'] == 'system' %}{% set loop_messages = messages[1:] %}{% set system_message = messages[0]['content'] %}{% elif false == true %}{% set loop_messages = messages %}{% set system_message = 'You are Aya.' %}{% else %}{% set loop_messages = messages %}{% set system_message = false %}{% endif %}{% if system_message != false %}{{ '<|START|><|SYSTEM|>' + system_message + '<|END|>' }}{% endif %}{% for message in loop_messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('Roles must alternate') }}{% endif %}{% set content = message['content'] %}{% if message['role'] == 'user' %}{{ '<|START|><|USER|>' + content.strip() + '<|END|>' }}{% elif message['role'] == 'assistant' %}{{ '<|START|><|BOT|>' + content.strip() + '<|END|>' }}{% endif %}{% endfor %}{% if add_generation_prompt %}{{ '<|START|><|BOT|>' }}{% endif %}""",
    "header (llama 3)": """{{- bos_token }}
{%- if not date_string is defined %}
    {%- if strftime_now is defined %}
        {%- set date_string = strftime_now("%d %b %Y") %}
    {%- endif %}
{%- endif %}
{%- if messages[0]['role'] == 'system' %}
    {%- set system_message = messages[0]['content']|trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system_message = "" %}
{%- endif %}
{{- "<|header|>system<|end|>\\n\\n" }}
{{- "Today: " + date_string + "\\n\\n" }}
{{- system_message }}
{{- "<|eot|>" }}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|header|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if not message.tool_calls|length == 1 %}{{- raise_exception("one call") }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|header|>assistant<|end|>\\n\\n' }}
{%- endif %}
""",
    "instructions (mistral)": """{%- if messages[0]["role"] == "system" %}
    {%- set system_message = messages[0]["content"] %}
    {%- set loop_messages = messages[1:] %}
{%- else %}
    {%- set loop_messages = messages %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr("role", "equalto", "user") | list %}
{%- set ns = namespace() %}
{%- set ns.index = 0 %}
{%- for message in loop_messages %}
    {%- if not (message.role == "tool" or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message["role"] == "user") != (ns.index % 2 == 0) %}
            {{- raise_exception("roles must alternate") }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message["role"] == "user" %}
        {%- if loop.last and system_message is defined %}
            {{- "[INST] " + system_message + "\\n\\n" + message["content"] + "[/INST]" }}
        {%- else %}
            {{- "[INST] " + message["content"] + "[/INST]" }}
        {%- endif %}
        {%- if message == user_messages[-1] %}{{- "!" }}{%- endif %}
    {%- elif message["role"] == "assistant" %}
        {{- " " + message["content"]|trim + eos_token}}
    {%- endif %}
{%- endfor %}
""",
    "turns (gemma)": """{{ bos_token }}{%- if messages[0]['role'] == 'system' -%}
    {%- set first_user_prefix = messages[0]['content'] + '\\n\\n' -%}
    {%- set loop_messages = messages[1:] -%}
{%- else -%}
    {%- set first_user_prefix = "" -%}
    {%- set loop_messages = messages -%}
{%- endif -%}
{%- for message in loop_messages -%}
    {%- set role = "model" if (message['role'] == 'assistant') else message['role'] -%}
    {{ '<start_of_turn>' + role + '\\n' + (first_user_prefix if loop.first else "") }}
    {%- if message['content'] is string -%}
        {{ message['content'] | trim }}
    {%- elif message['content'] is iterable -%}
        {%- for item in message['content'] -%}{{ item['text'] | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}
    {{'<start_of_turn>model\\n'}}
{%- endif -%}
""",
    "macros": """{%- macro turn(role, content, last=false) -%}
<{{ role }}>{{ content|trim }}{% if not last %}</{{ role }}>{% endif %}
{%- endmacro -%}
{% for m in messages %}{{ turn(m.role, m.content, last=loop.last) }}
{% endfor %}""",
    "white space": """  {% if true %}
    a
  {%+ if true %}
  b
  {%+ endif +%}
    {# note #}
  c{# note #}
  {{ '  d' }}
    {%- if true -%}
      e
    {%- endif +%}
  {- f -}
 { {%- if true %}g{% endif %} }
  {% endif %}

""",
    "raw": """{% raw %}
  {{ not.a.tag }} {% nor %} {# this #} '"\\
  {% endraw %}
{%- raw -%}   x   {%- endraw -%}   y
    {% raw %} z{% endraw %}
end""",
    "with": """{% set a = 1 %}{% with a = 2, b = a + 1 %}{{ a }} {{ b }}{% set a = 5 %} {{ a }}{% endwith %} {{ a }} {{ b }}
{% with %}{% set c = 3 %}{{ c }}{% endwith %}{{ c is defined }}""",
    "generation": """{% for m in messages %}
{% if m.role == 'assistant' %}
{% generation %}
{{ m.content }}
{%- endgeneration %}
{% else %}{{ m.role }}{% endif %}
{% endfor %}""",
    "strip": r"""{% for m in messages %}{% set c = m.content %}[{{ c.strip() }}|{{ c.strip('\n') }}|{{ c.lstrip(' H') }}|{{ c.rstrip('\n !') }}|{{ c|trim }}|{{ c|trim('\n') }}|{{ c.lstrip('\n').rstrip() }}]{% endfor %}""",
    "equality": """{{ '' == false }} {{ '' != false }} {{ 0 == false }} {{ 1 == true }} {{ none == false }} {{ '1' == 1 }} {{ [] == '' }} {{ [1, 'a'] == [1, 'a'] }} {{ {'a': [1]} == {'a': [1]} }} {{ x == none }} {{ x == y }} {{ 1 == 1.0 }} {{ (1, 2) == [1, 2] }} {{ messages[0] in messages }} {{ none in [none] }} {{ 'a' in ['b', ['a']] }} {{ x in [1] }} {{ 1 in x }} {{ messages[0].content != '' }} {{ 'a' < 'b' }} {{ 'role' in messages[0] }} {{ 'x' not in messages[0] }}""",
    "numbers": """{{ -7 % 3 }} {{ 7 % -3 }} {{ 7 % 3 }} {{ -7 // 2 }} {{ 7 / 2 }} {{ 2 ** 3 }} {{ -6 % 3 }} {{ 1.5 + 1.5 }} {{ 3 * 2 - 1 }} {{ messages|length % 2 }}""",
    "printed values": """{{ true }} {{ none }} {{ x }} {{ [1, 'a', none, true, "it's"] }} {{ {'a': 'b', 'c': [1.5]} }} {{ (1, 'a') }} {{ 'n: ' ~ none ~ true ~ 1 ~ [1] ~ x }} {{ [true, none]|string }} {{ '\\n\\t\\\\' }} {{ ['\\n', '\\\\', 'é'] }}""",
    "filters on undefined": """[{{ x|trim }}|{{ x|length }}|{{ x|list }}|{{ x|join(',') }}|{{ x|upper }}|{{ x|default('d') }}|{{ x|d('e') }}|{{ x|default }}|{{ x|string }}|{{ x|first is defined }}|{{ x|lower }}|{{ x|replace('a', 'b') }}|{{ none|default('d') }}|{{ none|default('d', true) }}|{{ none|trim }}|{{ x|items|list }}|{{ x|map('trim')|list }}|{{ x|selectattr('a')|list }}|{% for c in x %}c{% endfor %}|{{ messages[0].nothing|trim }}]""",
    "loops over texts": """{% for m in messages %}{% for c in m.content %}{{ loop.index }}{{ c }}{% if loop.index > 3 %}{% break %}{% endif %}{% else %}empty{% endfor %}|{% endfor %}{% for c in 'a😀b' if c != 'a' %}{{ c }},{% endfor %}{{ 'a😀b'|length }}{{ 'a😀b'|list }}{{ 'abc'|first }}{{ 'abc'|last }}{{ 'abc'|reverse }}{% for k in messages[0] %}{{ k }};{% endfor %}{% for k, v in messages[0].items() %}{{ k }}={{ v }};{% endfor %}{% for a, b in [(1, 2), [3, 4]] %}{{ a + b }}{% endfor %}""",
    "string methods": r"""{% for m in messages %}{% set c = m.content %}{{ c.find('e') }} {{ c.find('zz') }} {{ c.find('e', 2) }} {{ c.rfind('e') }} {{ c.count('e') }} {{ c.splitlines() }} {{ c.splitlines(true)|length }} {{ c.upper()|length }} {{ c.capitalize() }} {{ c.removeprefix('Wri') }} {{ c.removesuffix('.') }} {{ c.startswith(('H', 'W')) }} {{ '12'.isdigit() }} {{ ''.isspace() }} {{ ' '.isspace() }} {{ ', '.join(['a', 'b']) }} {{ c.split() }} {{ c.split('e', 1) }} {{ c.replace('e', 'E', 1) }}
{% endfor %}{{ '漢字😀x'.find('x') }} {{ 'a\r\nb\n\nc'.splitlines() }} {{ 'aaa'.count('aa') }} {{ 'aBC dE'|capitalize }} {{ 'ab cd'|title }}""",
    "lists": """{{ messages|map(attribute='role')|join(', ') }} {{ messages|map(attribute='role')|unique|list }} {{ messages|selectattr('role', 'eq', 'user')|list|length }} {{ messages|rejectattr('role', 'equalto', 'user')|map(attribute='content')|map('trim')|join('/') }} {{ messages|selectattr('role', 'in', ['user', 'tool'])|list|count }} {{ [' a ', 'b ']|map('trim')|list }} {{ [1, 2, 3]|select('odd')|list }} {{ [1, 0, none]|reject('none')|list }} {{ [0, 1]|select|list }} {{ messages|selectattr('tool_calls', 'defined')|list|length }} {{ ['a', none, true, 1]|join('-') }} {{ [3, 1, 2]|sort }} {{ [3, 1]|sort(reverse=true) }} {{ ['b', 'A']|sort|first }} {{ messages[-1].role }} {{ messages[:1]|length }} {{ messages[-2:]|length }} {{ []|first is defined }}""",
    "json": """{{ messages|tojson }} {{ {'a': [1, none, true], 'é': '"'}|tojson(indent=2) }} {{ [1]|tojson(separators=(',', ':')) }} {{ 'x\\n</b>'|tojson }}""",
    "tuples, tests with an argument, do": """{% for message in messages %}{% if loop.index is divisibleby 2 %}even {% endif %}{% if loop.index0 is not divisibleby(3) %}{{ loop.index0 }} {% endif %}{% if message.role is in ('user',) %}U{% elif message.role is not eq 'assistant' and loop.length is ge 2 %}S{% else %}A{% endif %}{% do message.role %}{% endfor %}{{ (1,) }}{{ () }}{{ (1, 'b',) }}{{ [3, 4, 6] | select('divisibleby', 3) | list }}{% for (a, b) in [(1, (2,))] %}{{ a }}{{ b }}{% endfor %}{{ 'is (a, )' }}{{ messages | length is sameas (messages | length) }}{{ 2 is lt (1 + 2) }}{{ 'x' if messages[0].role is eq messages[0]['role'] else 'y' }}{{ 7 is divisibleby [7, 2][0] }}""",
    "exceptions": """{% if messages|length > 2 %}{{ raise_exception('at most two messages') }}{% endif %}{{ messages|length }}""",
    "escapes": r"""{{ 'a\d\'b' }}{{ "c\"d\\n" }}{{ '}}' }}{{ "%}" }}{% set m = {'a': {'b': '}}'}} %}{{ m.a.b }}{{ {'a': {'b': 1}}['a']['b'] }}""",
}


def render(source, messages, variables):
    values = {"bos_token": "<s>", "eos_token": "</s>", "tools": None, "documents": None, "add_generation_prompt": True}
    try:
        return environment.from_string(source).render(**{**values, **variables}, messages=messages)
    except jinja2.exceptions.TemplateError as error:
        return {"error": str(error)}
    except Exception as error:
        return {"failure": str(error)}


def record(name, source):
    renders = []
    for label, messages in CONVERSATIONS.items():
        for index, variables in enumerate(VARIABLES):
            result = render(source, messages, variables)
            if index > 0 and result == render(source, messages, {}):
                continue
            renders.append([label, index, result])
    return {"name": name, "source": source, "renders": renders}


def read(path):
    text = open(path, encoding="utf-8").read()
    if not path.endswith(".json"):
        return [(path, text)]
    template = json.loads(text).get("chat_template")
    if isinstance(template, list):
        return [(f"{path} {each['name']}", each["template"]) for each in template]
    return [(path, template)] if template else []


sources = [pair for path in sys.argv[1:] for pair in read(path)] or TEMPLATES.items()
lines = ",\n".join(json.dumps(record(*pair), ensure_ascii=False) for pair in sources)
head = json.dumps({"conversations": CONVERSATIONS, "variables": VARIABLES}, ensure_ascii=False)
print(f'{head[:-1]},\n"templates":[\n{lines}\n]}}')
