"""Writes golden/schemas.json: schemas, and documents that the package jsonschema finds valid or not."""

import json
import pathlib

import jsonschema

CASES = [
    ({"type": "integer", "minimum": -3, "maximum": 12}, [-4, -3, 0, 12, 13, 1.5, "1", None]),
    ({"type": "number", "exclusiveMinimum": 0, "maximum": 2.5}, [0, 0.1, 2.5, 2.51, 3, -1]),
    ({"type": "integer", "multipleOf": 5}, [0, 5, 10, 7, 25, 123]),
    ({"type": "string", "minLength": 2, "maxLength": 3}, ["", "a", "ab", "abc", "abcd", "日本", "日本語語"]),
    ({"type": "string", "pattern": "^[a-f]+-\\d{2}$"}, ["a-12", "abc-00", "g-12", "a-1", "a-123", ""]),
    ({"type": "string", "format": "date"}, ["2024-02-29", "2024-1-1", "hello"]),
    ({"enum": ["a", 1, None, [1, 2], {"k": True}]}, ["a", "b", 1, 2, None, [1, 2], [2, 1], {"k": True}, {"k": False}]),
    ({"const": {"a": [1]}}, [{"a": [1]}, {"a": [2]}, {}]),
    ({"type": ["string", "null"]}, ["x", None, 1, True]),
    ({"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 3},
     [[], [True], [True, False, True], [True] * 4, [1], {}]),
    ({"type": "array", "prefixItems": [{"type": "string"}, {"type": "integer"}], "items": False},
     [[], ["a"], ["a", 1], ["a", 1, 2], [1]]),
    ({"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "string"}}, "required": ["a"],
      "additionalProperties": False},
     [{"a": 1}, {"a": 1, "b": "x"}, {"b": "x"}, {"a": "1"}, {"a": 1, "c": 2}, {}]),
    ({"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"x": 1, "y": 2}, {"x": "1"}]),
    ({"type": "object", "properties": {"a": {}}, "patternProperties": {"^x": {"type": "integer"}},
      "additionalProperties": False},
     [{}, {"a": 1}, {"x1": 1}, {"x1": "1"}, {"y": 1}]),
    ({"anyOf": [{"type": "integer", "maximum": 5}, {"type": "string", "maxLength": 1}]}, [3, 6, "a", "ab", None]),
    ({"allOf": [{"type": "integer", "minimum": 3}, {"maximum": 7}]}, [2, 3, 7, 8]),
    ({"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "object", "properties": {
        "v": {"type": "integer"}, "kids": {"type": "array", "items": {"$ref": "#/$defs/tree"}}},
        "required": ["v"], "additionalProperties": False}}},
     [{"v": 1}, {"v": 1, "kids": []}, {"v": 1, "kids": [{"v": 2, "kids": [{"v": 3}]}]}, {"v": 1, "kids": [{}]},
      {"kids": []}]),
    ({"definitions": {"p": {"type": "boolean"}}, "type": "object", "properties": {"x~/y": {"$ref": "#/definitions/p"}},
      "required": ["x~/y"]},
     [{"x~/y": True}, {"x~/y": 1}, {}]),
    ({"type": "object", "properties": {"a": {"type": "object", "properties": {"b": {"type": "array", "items": {
        "anyOf": [{"type": "null"}, {"type": "number"}]}}}, "required": ["b"]}}, "required": ["a"]},
     [{"a": {"b": [None, 1.5]}}, {"a": {"b": ["x"]}}, {"a": {}}, {"a": {"b": []}}]),
    ({"type": "object", "minProperties": 1, "maxProperties": 2}, [{}, {"a": 1}, {"a": 1, "b": 2}, {"a": 1, "b": 2, "c": 3}]),
    ({}, [1, "x", None, [1, {"a": []}], {"q": -1.5e3}]),
    (True, [1, []]),
]


def main():
    out = []
    for schema, documents in CASES:
        validator = jsonschema.Draft202012Validator(schema, format_checker=jsonschema.FormatChecker())
        out.append({
            "schema": schema,
            "documents": [
                {"text": json.dumps(d, ensure_ascii=False, separators=(",", ":")), "valid": validator.is_valid(d)}
                for d in documents
            ],
        })
    path = pathlib.Path(__file__).parent / "golden" / "schemas.json"
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(out, ensure_ascii=False, indent=1) + "\n")


main()
