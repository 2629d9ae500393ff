"""JSON and YAML of others, read with one kind of error.

The libraries raise more than their own errors: RecursionError for thousands of brackets, ValueError for a number of
thousands of digits or a date that is none, AttributeError for `!!timestamp x`. Whoever reads text that may be damaged
calls these, so that no caller can forget one.
"""

import json
from typing import Any

import yaml


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON document.

    Raises:
        ValueError: it is not JSON, not UTF-8, or nested too deeply; says where, if the parser does.
    """
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error


def parse_yaml(text: str) -> Any:
    """Return the value of a YAML document of plain values.

    Raises:
        ValueError: it is not YAML, or nested too deeply; says where, if the parser does.
    """
    try:
        return yaml.safe_load(text)
    except RecursionError as error:
        raise ValueError("brackets are nested too deeply") from error
    except (yaml.YAMLError, ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise ValueError(" ".join(str(error).split())) from error
