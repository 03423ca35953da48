"""Chat templates after the forms that the makers of thinking models publish, shortened to messages without tools.

Each is written here, and has the makers' variables, marks and white space (model cards and ``chat_template.jinja`` of
Qwen3, Qwen3.5, SmolLM3-3B, DeepSeek-R1-Distill-Qwen, Magistral-Small-2509, gpt-oss-20b and gemma-4-E4B-it).
"""

from __future__ import annotations

_CHATML = (
    "{%- for m in messages %}{%- if m.role != 'assistant' %}{{ '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- else %}{%- set words = m.content %}{%- if '</think>' in words %}"
    "{%- set words = words.split('</think>')[-1].lstrip('\n') %}{%- endif %}{{ '<|im_start|>assistant\n' + words }}"
    "{%- endif %}{{ '<|im_end|>\n' }}{%- endfor %}"
)
QWEN3 = _CHATML + (
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}"
    "{%- endif %}"
)
QWEN35 = _CHATML + (
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{ '<think>\n\n</think>\n\n' }}"
    "{%- else %}{{ '<think>\n' }}{%- endif %}{%- endif %}"
)
SMOLLM3 = (
    "{%- if enable_thinking is not defined %}{%- set enable_thinking = true %}{%- endif %}"
    "{%- set mode = '/think' if enable_thinking else '/no_think' %}{%- set own = '' %}"
    "{%- if messages[0].role == 'system' %}{%- set own = messages[0].content %}"
    "{%- if '/no_think' in own %}{%- set mode = '/no_think' %}{%- elif '/think' in own %}{%- set mode = '/think' %}"
    "{%- endif %}{%- set own = own.replace('/no_think', '').replace('/think', '').rstrip() %}{%- endif %}"
    "{{ '<|im_start|>system\n## Metadata\n\nReasoning Mode: ' + mode + '\n\n## Custom Instructions\n\n' + own }}"
    "{{ '<|im_end|>\n' }}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{{ '<|im_start|>user\n' + m.content + '<|im_end|>\n' }}{%- elif m.role == 'assistant' %}"
    "{%- if mode == '/think' %}{{ '<|im_start|>assistant\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}{%- else %}"
    "{{ '<|im_start|>assistant\n<think>\n\n</think>\n' + m.content.lstrip('\n') + '<|im_end|>\n' }}{%- endif %}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{%- if mode == '/think' %}{{ '<|im_start|>assistant\n' }}"
    "{%- else %}{{ '<|im_start|>assistant\n<think>\n\n</think>\n' }}{%- endif %}{%- endif %}"
)
ONLY_A_WORD = _CHATML + (
    "{%- if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}"
    "{%- if '/no_think' in messages[0].content %}{{ '<think>\n\n</think>\n\n' }}{%- endif %}{%- endif %}"
)
DEEPSEEK = (
    "{%- for m in messages %}{%- if m.role == 'system' %}{{ m.content }}{%- elif m.role == 'user' %}"
    "{{ '<｜User｜>' + m.content }}{%- else %}{%- set words = m.content %}{%- if '</think>' in words %}"
    "{%- set words = words.split('</think>')[-1] %}{%- endif %}"
    "{{ '<｜Assistant｜>' + words + '<｜end▁of▁sentence｜>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<｜Assistant｜><think>\\n' }}{%- endif %}"
)
MAGISTRAL = (
    "{%- if messages[0].role == 'system' %}{{ '[SYSTEM_PROMPT]' + messages[0].content + '[/SYSTEM_PROMPT]' }}"
    "{%- else %}{{ '[SYSTEM_PROMPT]First draft your thinking process: [THINK]draft[/THINK]Here, answer."
    "[/SYSTEM_PROMPT]' }}{%- endif %}{%- for m in messages %}{%- if m.role == 'user' %}"
    "{{ '[INST]' + m.content + '[/INST]' }}{%- elif m.role == 'assistant' %}{{ m.content + '</s>' }}{%- endif %}"
    "{%- endfor %}"
)
GPT_OSS = (
    "{%- if reasoning_effort is not defined %}{%- set reasoning_effort = 'medium' %}{%- endif %}"
    "{{ '<|start|>system<|message|>You are ChatGPT.\n\nReasoning: ' + reasoning_effort + '\n\n"
    "# Valid channels: analysis, commentary, final. Channel must be included for every message.<|end|>' }}"
    "{%- for m in messages %}{%- if m.role == 'system' %}"
    "{{ '<|start|>developer<|message|># Instructions\n\n' + m.content + '<|end|>' }}{%- elif m.role == 'user' %}"
    "{{ '<|start|>user<|message|>' + m.content + '<|end|>' }}{%- else %}"
    "{{ '<|start|>assistant<|channel|>final<|message|>' + m.content + '<|end|>' }}{%- endif %}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant' }}{%- endif %}"
)
GEMMA4 = (
    "{%- set thinks = enable_thinking is defined and enable_thinking %}"
    "{%- if thinks or messages[0].role == 'system' %}{{ '<|turn>system\n' }}"
    "{%- if thinks %}{{ '<|think|>\n' }}{%- endif %}"
    "{%- if messages[0].role == 'system' %}{{ messages[0].content | trim }}{%- endif %}{{ '<turn|>\n' }}{%- endif %}"
    "{%- for m in messages %}{%- if m.role != 'system' %}"
    "{{ '<|turn>' + ('model' if m.role == 'assistant' else 'user') + '\n' + m.content | trim + '<turn|>\n' }}"
    "{%- endif %}{%- endfor %}{%- if add_generation_prompt %}{{ '<|turn>model\n' }}"
    "{%- if not thinks %}{{ '<|channel>thought\n<channel|>' }}{%- endif %}{%- endif %}"
)
