"""Regular expressions of JSON schemas without the parts that the compiler has not: assertions of zero width."""

import re

# An escaped character, a class of characters, the beginning of a group (of an assertion: with its sign), its end.
_TOKEN = re.compile(r"(\\[bB])|\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|(\(\?<?[=!])|(\()|(\))|.", re.DOTALL)


def without_assertions(pattern: str) -> str:
    r"""Return a pattern without look-around, `\b` and `\B`; it matches all texts that the given one matches."""
    kept: list[str] = []
    depth, within = 0, 0  # of groups; how deep the assertion is that is left out, if there is one
    for found in _TOKEN.finditer(pattern):
        border, assertion, opening, closing = found.groups()
        if assertion or opening:
            depth += 1
            if assertion and not within:
                within = depth
        if not within and not border:
            kept.append(found[0])
        if closing:
            within = 0 if within == depth else within
            depth -= 1
    return "".join(kept)
