"""Writes fixtures/expected.json: what transformers renders for each template and each conversation.

    pip install transformers==5.17.0 jinja2==3.1.6
    python make_golden.py [FOLDER]

FOLDER (default: fixtures, beside this file) has
  templates/NAME.jinja   chat templates as their models ship them
  models.json            NAME -> {"bos_token", "eos_token", "controls": all control tokens' literals, …}
  conversations.json     CASE -> {"messages", "tools"?, "documents"?, "kwargs"?, "generate"?, "continue"?}

Rendering is transformers' own `render_jinja_template`; only its clock is set, to NOW in UTC, and no tokenizer is loaded.
The result is NAME -> CASE -> the prompt, or {"raises": why}. Two kinds of cases are added, for what servers do to
messages before a template sees them:
  "CASE, joined": the texts of content parts joined by newlines, for templates that take strings only;
  "CASE, text": arguments of tool calls as JSON text, for templates that raise on an object.
A second run changes nothing.
"""

import copy
import datetime
import json
import pathlib
import sys

from transformers.utils import chat_template_utils

NOW = 1_753_693_445  # 2025-07-28 09:04:05 UTC, as in tests/golden.rs


class Clock(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls.fromtimestamp(NOW, datetime.timezone.utc)


chat_template_utils.datetime = Clock


def render(template, model, case):
    specials = {k: v for k, v in model.items() if k.endswith("_token") and v is not None}
    try:
        rendered, _ = chat_template_utils.render_jinja_template(
            conversations=[copy.deepcopy(case["messages"])],
            tools=case.get("tools"),
            documents=case.get("documents"),
            chat_template=template,
            add_generation_prompt=case.get("generate", not case.get("continue", False)),
            continue_final_message=case.get("continue", False),
            **specials,
            **case.get("kwargs", {}),
        )
    except Exception as error:
        return {"raises": f"{type(error).__name__}: {error}".split("\n")[0][:100]}
    return rendered[0]


def joined(case):
    case = copy.deepcopy(case)
    for message in case["messages"]:
        if isinstance(message["content"], list):
            message["content"] = "\n".join(part["text"] for part in message["content"])
    return case


def arguments_as_text(case):
    case = copy.deepcopy(case)
    for message in case["messages"]:
        for call in message.get("tool_calls", []):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return case


def main():
    folder = pathlib.Path(sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent / "fixtures")
    models = json.loads((folder / "models.json").read_text())
    cases = json.loads((folder / "conversations.json").read_text())
    expected = {}
    for name, model in models.items():
        template = (folder / "templates" / f"{name}.jinja").read_text()
        expected[name] = {}
        for case, fields in cases.items():
            prompts = expected[name]
            prompts[case] = render(template, model, fields)
            if joined(fields) != fields:
                prompts[f"{case}, joined"] = render(template, model, joined(fields))
        if not isinstance(expected[name]["call-only"], str):
            for case, fields in cases.items():
                if arguments_as_text(fields) != fields:
                    prompts[f"{case}, text"] = render(template, model, arguments_as_text(fields))
    text = json.dumps(expected, ensure_ascii=False, indent=1, sort_keys=True)
    (folder / "expected.json").write_text(text + "\n")


main()
