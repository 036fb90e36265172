"""The JSON Schema of a configuration file, for editors, and the list of all keys."""

from __future__ import annotations

from typing import Any

from rayeval.config._models import NOT_SEMANTIC, NOT_SEMANTIC_SECTIONS, Config

_DIALECT = "http://json-schema.org/draft-07/schema#"  # the newest that yaml-language-server reads in full


def _draft7(node: Any) -> Any:
    if isinstance(node, dict):
        out = {("definitions" if k == "$defs" else k): _draft7(v) for k, v in node.items()}
        if isinstance(out.get("$ref"), str):
            reference = out.pop("$ref").replace("#/$defs/", "#/definitions/")
            # Draft 7 ignores every sibling of a $ref, so a description beside one needs allOf.
            return {**out, "allOf": [{"$ref": reference}]} if out else {"$ref": reference}
        return out
    return [_draft7(v) for v in node] if isinstance(node, list) else node


def is_semantic(key: str) -> bool:
    """Whether the dotted key enters the fingerprint (a file by its content counts as not: its path does not)."""
    return key.partition(".")[0] not in NOT_SEMANTIC_SECTIONS and key not in NOT_SEMANTIC


def config_keys() -> dict[str, Any]:
    """Every dotted key -> its pydantic ``FieldInfo``, in the order of the file."""
    keys: dict[str, Any] = {}
    for section, field in Config.model_fields.items():
        model = field.annotation
        assert model is not None
        keys.update({f"{section}.{name}": info for name, info in model.model_fields.items()})
    return keys


def config_schema() -> dict[str, Any]:
    """JSON Schema (draft 7) of a configuration file. Each key has a description and ``x-semantic``."""
    schema: dict[str, Any] = _draft7(Config.model_json_schema(mode="validation"))
    for section, field in Config.model_fields.items():
        model = field.annotation
        assert model is not None
        for name, prop in schema["definitions"][model.__name__]["properties"].items():
            prop["x-semantic"] = is_semantic(f"{section}.{name}")
    return {"$schema": _DIALECT, "$id": "rayeval.schema.json", **schema, "title": "rayeval configuration"}
