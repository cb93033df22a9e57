"""Results in JUnit's XML, which CI systems show."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from xml.etree.ElementTree import Element, ElementTree, SubElement

from parlay.errors import ConfigError


def write_junit(file: str, checks: Sequence[dict[str, Any]], rows: Sequence[dict[str, Any]]) -> None:
    """Write the results of `parlay verify`.

    Args:
        file: path of the file to write.
        checks: results of the kernels: `case`, `same` and the numbers of `rows` that differ.
        rows: results of completions: `method`, `way`, `parameters`, `same`, `difference`, or why one was `skipped`.

    Raises:
        ConfigError: the file cannot be written.
    """
    suite = Element("testsuite", name="parlay verify")
    for check in checks:
        case = SubElement(suite, "testcase", classname="self-check", name=check["case"])
        if not check["same"]:
            SubElement(case, "failure", message=f"rows differ among {', '.join(map(str, check['rows']))}")
    for row in rows:
        if "skipped" in row:
            case = SubElement(suite, "testcase", classname=row["method"], name="all")
            SubElement(case, "skipped", message=row["skipped"])
            continue
        case = SubElement(suite, "testcase", classname=row["method"], name=f"{row['way']}, {row['parameters']}")
        if not row["same"]:
            SubElement(case, "failure", message=row["difference"])
    for name, tag in (("tests", "testcase"), ("failures", "testcase/failure"), ("skipped", "testcase/skipped")):
        suite.set(name, str(len(suite.findall(tag))))
    try:
        with Path(file).open("wb") as out:
            ElementTree(suite).write(out, encoding="utf-8", xml_declaration=True)
    except OSError as error:
        raise ConfigError(f"--junit {file} cannot be written: {error.strerror}") from None
