"""What a dataclass's docstring says about each of its fields."""

import re


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the text of each attribute in the `Attributes` sections of a class's docstring and its bases'."""
    docs: dict[str, str] = {}
    for part in reversed(cls.__mro__):
        section = re.split(r"\n\s*Attributes:\n", part.__doc__ or "")[-1].split("\n\n")[0]
        for name, text in re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
            docs[name] = re.sub(r"\s+", " ", text).replace("`", "")
    return docs
