"""Secrets: which names look as if they hold one, and what stands in place of their values.

A digest tells whether a secret changed without telling the secret. Keys are made of the full digest; people see its
first digits.
"""

import ast
import re
from collections.abc import Iterator

from precast.cache.canonical import Json, canonical_json, sha256

__all__ = [
    "is_sealed",
    "is_secret",
    "is_secret_variable",
    "mask_source",
    "public_value",
    "seal",
    "sealed_value",
    "source_lines",
]

_PREFIX = "sha256:"
_SHOWN = 8
_MASKED = re.compile(rf"{_PREFIX}[0-9a-f]{{{_SHOWN}}}")
_SEALED = re.compile(rf"{_PREFIX}[0-9a-f]{{64}}")

_VARIABLE = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|KEY|CREDENTIAL|AUTH", re.IGNORECASE)
# In configs and in source text the short words are common in other words and in names of numbers: a tokenizer, an
# author, num_key_value_heads. There they count at the end of a word only, and only where the value is text.
_STRONG = re.compile(r"SECRET|PASSWORD|PASSWD|CREDENTIAL", re.IGNORECASE)
_WEAK = re.compile(r"(?:TOKEN|KEY|AUTH|AUTHORIZATION)S?(?![A-Za-z])", re.IGNORECASE)

_LINE_END = re.compile(r"\r\n|\r|\n")
_ASSIGNED = re.compile(r"(?P<name>[\w.]+)[\"']?\]?\s*(?::[^=\"']*)?(?:=(?!=)|:)\s*(?P<value>.*)")
_LITERAL = re.compile(r"\"[^\"]*\"?|'[^']*'?")

Span = tuple[int, int, int, int]


def is_secret_variable(name: str) -> bool:
    """Tell whether a variable's name looks as if it holds a secret."""
    return _VARIABLE.search(name) is not None


def is_secret(name: str, value: Json) -> bool:
    """Tell whether a value of a config or of source text looks like a secret, by its name and kind."""
    if value is None or isinstance(value, bool):
        return False
    return _STRONG.search(name) is not None or (isinstance(value, str) and _WEAK.search(name) is not None)


def seal(text: str) -> str:
    """Return what a key holds in place of a secret: its full digest; what is sealed stays as it is."""
    return text if _SEALED.fullmatch(text) else f"{_PREFIX}{sha256(text.encode('utf-8', 'surrogateescape'))}"


def sealed_value(name: str, value: Json) -> Json:
    """Return a config value as a key may hold it: secrets, however deep, as their full digests.

    Args:
        name: The dotted name of the value.
        value: The value.
    """
    if isinstance(value, dict):
        return {key: sealed_value(f"{name}.{key}", inner) for key, inner in value.items()}
    if not is_secret(name, value):
        return value
    return seal(value if isinstance(value, str) else canonical_json(value).decode("utf-8"))


def is_sealed(value: Json) -> bool:
    """Tell whether a value stands in place of a secret."""
    return isinstance(value, str) and _SEALED.fullmatch(value) is not None


def public_value(group: str, name: str, value: Json) -> Json:
    """Return a factor's value as people may see it: secrets, however deep, as the first digits of their digest.

    Args:
        group: The factor's group.
        name: Its name, or the dotted name of a leaf.
        value: Its value.
    """
    if isinstance(value, dict):
        return {key: public_value(group, f"{name}.{key}", inner) for key, inner in value.items()}
    if group == "env":
        return _shown(value) if value is not None and is_secret_variable(name) else value
    return _shown(value) if group in ("config", "compiler") and is_secret(name, value) else value


def source_lines(text: str) -> list[str]:
    """Return a file's lines as editors count them."""
    return _LINE_END.split(text)


def mask_source(text: str) -> list[str]:
    """Return a file's lines, with the literals that are assigned to secret-looking names replaced.

    Literals are found in the syntax tree, so also those that go over several lines; in text that is no Python, and in
    comments, line by line. What is masked already stays as it is, so a stored text compares with a present one.
    """
    lines = source_lines(text)
    for span in sorted(set(_secret_spans(text)), reverse=True):
        _replace(lines, span)
    return [_mask_line(line) for line in lines]


def _shown(value: Json) -> str:
    text = value if isinstance(value, str) else canonical_json(value).decode("utf-8")
    return seal(text)[: len(_PREFIX) + _SHOWN]


def _secret_spans(text: str) -> Iterator[Span]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    for node in ast.walk(tree):
        for name, value in _bindings(node):
            yield from _literal_spans(name, value)


def _bindings(node: ast.AST) -> Iterator[tuple[str, ast.expr | None]]:
    """Yield the names that a node gives values, and the expressions of those values."""
    match node:
        case ast.Assign(targets=targets, value=value):
            yield from ((_name(target), value) for target in targets)
        case ast.AnnAssign(target=target, value=value) | ast.AugAssign(target=target, value=value):
            yield _name(target), value
        case ast.NamedExpr(target=target, value=value):
            yield _name(target), value
        case ast.keyword(arg=name, value=value):
            yield name or "", value
        case ast.Dict(keys=keys, values=values):
            yield from ((_name(key), value) for key, value in zip(keys, values, strict=True))
        case ast.arguments():
            names = [argument.arg for argument in (*node.posonlyargs, *node.args)]
            yield from zip(names[len(names) - len(node.defaults) :], node.defaults, strict=True)
            yield from zip((argument.arg for argument in node.kwonlyargs), node.kw_defaults, strict=True)


def _name(node: ast.expr | None) -> str:
    return "" if node is None or isinstance(node, ast.Dict) else ast.unparse(node)


def _literal_spans(name: str, value: ast.expr | None) -> Iterator[Span]:
    for node in ast.walk(value) if value is not None else ():
        literal = getattr(node, "value", None) if isinstance(node, ast.Constant) else None
        is_text = isinstance(literal, str | bytes) or isinstance(node, ast.JoinedStr)
        plain = "text" if is_text else literal
        if isinstance(node, ast.JoinedStr | ast.Constant) and is_secret(name, plain if is_text else _number(plain)):
            yield node.lineno, node.col_offset, node.end_lineno or node.lineno, node.end_col_offset or 0


def _number(literal: object) -> Json:
    return literal if isinstance(literal, int | float) else None


def _replace(lines: list[str], span: Span) -> None:
    """Put a digest in place of a literal; lines count from 1 and columns in UTF-8 bytes, as in the syntax tree."""
    first, begin, last, end = span
    rows = [line.encode("utf-8", "surrogatepass") for line in lines[first - 1 : last]]
    if len(rows) != last - first + 1:
        return
    whole = b"\n".join(rows)
    stop = len(whole) - len(rows[-1]) + end
    if _MASKED.fullmatch(whole[begin + 1 : stop - 1].decode("utf-8", "replace")):
        return
    shown = f'"{_shown(whole[begin:stop].decode("utf-8", "replace"))}"'.encode()
    # The lines of one literal stay as many, so that line numbers hold.
    masked = [rows[0][:begin] + shown, *(b"" for _ in rows[1:])]
    masked[-1] += whole[stop:]
    lines[first - 1 : last] = [row.decode("utf-8", "replace") for row in masked]


def _mask_line(line: str) -> str:
    match = _ASSIGNED.search(line)
    while match is not None:
        if is_secret(match["name"], "text"):
            begin = match.start("value")
            return line[:begin] + _LITERAL.sub(_mask_literal, line[begin:])
        match = _ASSIGNED.search(line, match.end("name"))
    return line


def _mask_literal(match: re.Match[str]) -> str:
    inner = match[0].strip("\"'")
    # What the syntax tree found is masked already; an empty text is no secret.
    return match[0] if not inner or _MASKED.fullmatch(inner) else f'"{_shown(match[0])}"'
