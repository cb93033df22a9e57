"""What a dataclass's docstring says about each of its fields."""

import re


def attribute_docs(cls: type) -> dict[str, str]:
    """Return the text of each attribute in the `Attributes` section of a class's docstring."""
    section = re.split(r"\n\s*Attributes:\n", cls.__doc__ or "")[-1].split("\n\n")[0]
    docs: dict[str, str] = {}
    for name, text in re.findall(r"^ {8}(\w+): (.*(?:\n {12}.*)*)", section, re.MULTILINE):
        docs[name] = re.sub(r"\s+", " ", text).replace("`", "")
    return docs
