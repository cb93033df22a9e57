"""Short chat templates in the manner of well-known ones, and what transformers makes of them."""

from collections.abc import Sequence
from typing import Any

from transformers.utils.chat_template_utils import render_jinja_template

Message = dict[str, Any]

# Shows any role, as SmolLM2's.
CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# Knows three roles, and calls, whose arguments may be text, as Qwen 2.5's and Qwen 3's.
QWEN = (
    "{% if tools %}<|im_start|>system\n{{ messages[0].content + '\n' if messages[0].role == 'system' }}"
    "{% for t in tools %}{{ t | tojson }}\n{% endfor %}<|im_end|>\n"
    "{% elif messages[0].role == 'system' %}<|im_start|>system\n{{ messages[0].content }}<|im_end|>\n{% endif %}"
    "{% for m in messages %}{% if m.role == 'user' or (m.role == 'system' and not loop.first) %}"
    "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% elif m.role == 'assistant' %}<|im_start|>assistant\n"
    "{% if m.reasoning_content %}<think>{{ m.reasoning_content }}</think>{% endif %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}\n<tool_call>\n{{ c.function.name }} {% if c.function.arguments is string %}"
    "{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}{% endif %}\n</tool_call>{% endfor %}"
    "<|im_end|>\n{% elif m.role == 'tool' %}<|im_start|>user\n<tool_response>\n{{ m.content }}\n</tool_response>"
    "<|im_end|>\n{% endif %}{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)

# A system message at the beginning alone, as Qwen 3.5's.
QWEN35 = (
    "{% for m in messages %}{% if m.role == 'system' %}{% if not loop.first %}"
    "{{ raise_exception('System message must be at the beginning.') }}{% endif %}[system]{{ m.content }}"
    "{% elif m.role in ('user', 'assistant') %}[{{ m.role }}]{{ m.content }}"
    "{% else %}{{ raise_exception('Unexpected message role.') }}{% endif %}{% endfor %}"
)

# The last system message alone, arguments that are text, and calls only where there is no content, as the distilled
# models of DeepSeek R1.
R1 = (
    "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}{% set ns.s = m.content %}"
    "{% endif %}{% endfor %}{{ bos_token }}{{ ns.s }}{% for m in messages %}"
    "{% if m.role == 'user' %}<User>{{ m.content }}{% elif m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}<call>{{ c.function.name + ' ' + c.function.arguments }}</call>{% endfor %}"
    "{% elif m.role == 'assistant' %}<Assistant>{{ m.content }}{% elif m.role == 'tool' %}<output>{{ m.content }}"
    "</output>{% endif %}{% endfor %}{% if add_generation_prompt %}<Assistant>{% endif %}"
)

# No system, and roles that alternate, as Gemma 2's.
GEMMA2 = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}"
    "{% endif %}"
    "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
    "{{ raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}{% endif %}"
    "<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n{{ m.content | trim }}<end_of_turn>\n"
    "{% endfor %}{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

# Ids of nine letters and digits, and roles that alternate apart from calls and results, as Mistral Nemo's.
NEMO = (
    "{%- set rest = messages[1:] if messages[0].role == 'system' else messages %}{%- set ns = namespace(i=0) %}"
    "{%- for m in rest %}{%- if not (m.role == 'tool' or m.tool_calls is defined) %}"
    "{%- if (m.role == 'user') != (ns.i % 2 == 0) %}{{- raise_exception('roles must alternate') }}{%- endif %}"
    "{%- set ns.i = ns.i + 1 %}{%- endif %}{%- endfor %}{%- if tools %}[TOOLS]{{ tools | tojson }}{%- endif %}"
    "{%- for m in rest %}{%- if m.role == 'user' %}[INST]{{ messages[0].content + '\n\n' if loop.last and "
    "messages[0].role == 'system' }}{{ m.content }}[/INST]{%- elif m.tool_calls is defined %}"
    "[TOOL_CALLS]{%- for c in m.tool_calls %}{%- if c.id is not defined or c.id | length != 9 %}"
    "{{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}{%- endif %}"
    '{{- c.function | tojson }}, "id": "{{ c.id }}"{%- endfor %}{{ eos_token }}{%- elif m.role == \'assistant\' %}'
    "{{ m.content }}{{ eos_token }}{%- elif m.role == 'tool' %}"
    "{%- if m.tool_call_id is not defined or m.tool_call_id | length != 9 %}{{- raise_exception('Tool call IDs "
    "should be alphanumeric strings with length 9!') }}{%- endif %}[RESULTS]{{ m.content }} {{ m.tool_call_id }}"
    "{%- else %}{{- raise_exception('Only user and assistant roles are supported!') }}{%- endif %}{%- endfor %}"
)

# One call a message, beside which no text is shown, as Llama 3.1's.
LLAMA31 = (
    "{{ bos_token }}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{% if not (m.role == 'tool' or 'tool_calls' in m) %}<{{ m.role }}>{{ m.content | trim }}<eot>"
    "{% elif 'tool_calls' in m %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('This model only supports single tool-calls at once!') }}{% endif %}"
    "{% set c = m.tool_calls[0].function %}<assistant>{{ c.name }} {{ c.arguments | tojson }}<eot>"
    "{% else %}<ipython>{{ m.content | tojson }}<eot>{% endif %}{% endfor %}"
)

# No place for tools, calls or results, as Phi 3.5's.
PHI35 = (
    "{% for m in messages %}{% if m.role in ('system', 'user', 'assistant') %}<|{{ m.role }}|>\n"
    "{{ m.content }}<|end|>\n"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|>\n{% endif %}"
)

# Goes through the pairs of arguments, as GLM 4's and Qwen3-Coder's.
GLM = (
    "{% for t in tools or [] %}{{ t | tojson }}\n{% endfor %}{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{% for c in m.tool_calls or [] %}<tool_call>{{ c.function.name }}{% for k, v in c.function.arguments.items() %}"
    "<arg_key>{{ k }}</arg_key><arg_value>{{ v | tojson if v is not string else v }}</arg_value>{% endfor %}"
    "</tool_call>{% endfor %}{% endfor %}"
)

# Results with the name of their function, as Qwen 1.5's for tools.
NAMED = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% for c in m.tool_calls or [] %}{{ c.function | tojson }}"
    "{% endfor %}{% if m.role == 'tool' %}{% if m.name is not defined %}"
    "{{ raise_exception(\"Tool response dicts require a 'name' key\") }}{% endif %} of {{ m.name }}{% endif %}"
    "{% endfor %}"
)

# Content in parts alone, as Llama Guard 3's.
GUARD = (
    "{% for m in messages %}{{ m.role | capitalize }}: {% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% endif %}{% endfor %}<end>\n{% endfor %}{% if add_generation_prompt %}Assistant:{% endif %}"
)

# The first part alone, as LLaVA's.
FIRST = "{% for m in messages %}{{ m.role | upper }}: {{ m.content[0].text }}\n{% endfor %}"

# Content as text or in parts, as Gemma 3's and Qwen2.5-VL's.
GEMMA3 = (
    "{% for m in messages %}<start_of_turn>{{ m.role }}\n{% if m.content is string %}{{ m.content | trim }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text | trim }}{% endif %}{% endfor %}{% endif %}"
    "<end_of_turn>\n{% endfor %}"
)

# Parts that are thoughts, as Ministral's.
MINISTRAL = (
    "{% for m in messages %}[{{ m.role }}]{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for c in m.content %}{% if c.type == 'text' %}{{ c.text }}"
    "{% elif c.type == 'thinking' %}[THINK]{{ c.thinking }}[/THINK]{% endif %}"
    "{% endfor %}{% endif %}{% endfor %}"
)

# A developer's message at the beginning, as gpt-oss's; it reads `thinking`.
GPT_OSS = (
    "{% if messages[0].role in ('developer', 'system') %}{% set rest = messages[1:] %}"
    "<developer>{{ messages[0].content }}<|end|>{% else %}{% set rest = messages %}{% endif %}{% for m in rest %}"
    "{% if m.role == 'assistant' %}{% if m.thinking %}<analysis>{{ m.thinking }}<|end|>{% endif %}"
    "<final>{{ m.content }}<|end|>{% elif m.role == 'user' %}<user>{{ m.content }}<|end|>{% endif %}{% endfor %}"
)


def reference(template: str, messages: Sequence[Message], tools: Any = None, **more: Any) -> str:
    """Return transformers' prompt of these very messages."""
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    given = {"add_generation_prompt": not more.get("continue_final_message"), **special, **more}
    (text,), _ = render_jinja_template([list(messages)], tools=tools, chat_template=template, **given)
    return str(text)
