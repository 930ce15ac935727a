"""The page for people beside the OpenAPI document: one HTML text without scripts and without anything from elsewhere.

A browser may be the only thing that reaches an admin port, often inside a closed network, so the page loads nothing. Everything is escaped.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from typing import Any

CONTENT_SECURITY_POLICY = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_STYLE = (
    "body{font:15px/1.5 system-ui,sans-serif;max-width:60rem;margin:2rem auto;padding:0 1rem;color:#222}"
    "code,pre{font:13px/1.4 ui-monospace,monospace;background:#f4f4f4;border-radius:3px}code{padding:0 .2em}pre{padding:.7em;overflow:auto}"
    "details{border:1px solid #ddd;border-radius:4px;margin:.4rem 0;padding:.3rem .7rem}summary{cursor:pointer}"
    "table{border-collapse:collapse;margin:.5rem 0}td,th{text-align:left;padding:.15rem .8rem .15rem 0;border-bottom:1px solid #eee;vertical-align:top}"
    ".m{display:inline-block;width:3.2rem;font-weight:600}"
)


def docs_page(document: Mapping[str, Any]) -> str:
    """The HTML of an OpenAPI document as `openapi_document` makes it."""
    info = document["info"]
    operations = [_operation(path, method, what) for path, methods in document["paths"].items() for method, what in methods.items()]
    messages = [_message(name, schema) for name, schema in document["components"]["schemas"].items()]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{escape(info["title"])}</title><style>{_STYLE}</style>'
        f"<h1>{escape(info['title'])}</h1><p>KVCM {escape(info['version'])}. <a href='openapi.json'>OpenAPI document</a></p>"
        f"<p>{_marked(info['description'])}</p><h2>Operations</h2>{''.join(operations)}<h2>Messages</h2>{''.join(messages)}</html>\n"
    )


def _operation(path: str, method: str, what: Mapping[str, Any]) -> str:
    body = what.get("requestBody")
    answers = "".join(f"<tr><td>{status}</td><td>{_marked(answer['description'])}</td></tr>" for status, answer in what["responses"].items())
    lines = [f"<p>{_marked(what.get('description', ''))}</p>"]
    if body is not None:
        request = body["content"]["application/json"]["schema"]
        reply = what["responses"]["200"]["content"]["application/json"]["schema"]
        lines.append(f"<p>Takes {_type(request)}, answers {_type(reply)}.</p><pre>curl -d '{{}}' http://HOST:PORT{escape(path)}</pre>")
    lines.append(f"<table>{answers}</table>")
    summary = f"<span class=m>{method.upper()}</span> <code>{escape(path)}</code> {escape(what['summary'])}"
    return f"<details><summary>{summary}</summary>{''.join(lines)}</details>"


def _message(name: str, schema: Mapping[str, Any]) -> str:
    required = schema.get("required", ())
    rows = "".join(
        f"<tr><td><code>{escape(field)}</code></td><td>{_type(kind)}</td><td>{'always there' if field in required else ''}</td></tr>"
        for field, kind in schema["properties"].items()
    )
    about = f"<p>{escape(schema['description'])}</p>" if "description" in schema else ""
    return f'<details id="{escape(name)}"><summary><code>{escape(name)}</code></summary>{about}<table>{rows}</table></details>'


def _type(schema: Mapping[str, Any]) -> str:
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f'<a href="#{escape(name)}">{escape(name)}</a>'
    if "enum" in schema:
        return " ".join(f"<code>{escape(json.dumps(value))}</code>" for value in schema["enum"])
    if "anyOf" in schema:
        return " or ".join(_type(choice) for choice in schema["anyOf"])
    if schema["type"] == "array":
        return f"list of {_type(schema['items'])}"
    if schema["type"] == "object":
        return f"texts to {_type(schema['additionalProperties'])}"
    return escape(f"{schema['type']} ({schema['format']})" if "format" in schema else str(schema["type"]))


def _marked(text: str) -> str:
    """Escaped, with what stands in backticks as code."""
    parts = escape(text).split("`")
    return "".join(f"<code>{part}</code>" if at % 2 else part for at, part in enumerate(parts))
