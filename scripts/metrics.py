"""What the code is like in numbers: `python scripts/metrics.py [COMMIT ...]`, the working tree first.

Lines are those with code, comments or text in them. An import circle is files that import each other at any depth,
wherever in a file the import stands; imports for types alone do not count.
"""

import argparse
import ast
import io
import subprocess
import tarfile
import tempfile
import tokenize
from collections.abc import Iterator
from pathlib import Path
from statistics import median, quantiles
from typing import Any

import networkx

ROOT = Path(__file__).resolve().parents[1]


def measure(tree: Path) -> dict[str, str]:
    """Return the numbers of one tree by what they are."""
    files = sorted((tree / "src").rglob("*.py"))
    texts = [file.read_text("utf-8") for file in files]
    modules = [ast.parse(text) for text in texts]
    sizes = [count_lines(text) for text in texts]
    total = sum(sizes)
    functions = [f for m in modules for f in ast.walk(m) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef)]
    lengths = [(f.end_lineno or f.lineno) - f.lineno + 1 for f in functions]
    typed = [f for f in functions if all(a.annotation for a in arguments(f)) and (f.returns or f.name == "__init__")]
    public = [node for module in modules for node in documented(module)]
    calls = [n for m in modules for n in ast.walk(m) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)]
    dynamic = sum(call.func.id in ("getattr", "hasattr") for call in calls if isinstance(call.func, ast.Name))
    tests = [file.read_text("utf-8") for file in (tree / "tests").rglob("*.py")]
    return {
        "lines / files": f"{total:,} / {len(files)}",
        "file: median, max": f"{median(sizes):.0f}, {max(sizes)}",
        "function: median, p90, max": f"{median(lengths):.0f}, {quantiles(lengths, n=10)[-1]:.0f}, {max(lengths)}",
        "typed argument lists": f"{len(typed) / len(functions):.1%}",
        "public docstrings": f"{sum(ast.get_docstring(node) is not None for node in public) / len(public):.1%}",
        "comments per 1000 lines": f"{1000 * sum(map(count_comments, texts)) / total:.0f}",
        "getattr/hasattr per 1000 lines": f"{1000 * dynamic / total:.1f}",
        "largest import circle": str(largest_circle(tree / "src", files, modules)),
        "native lines": f"{sum(count_lines(file.read_text('utf-8')) for file in (tree / 'csrc').iterdir()):,}",
        "test lines": f"{sum(map(count_lines, tests)):,}",
        **{f"lines of {folder}": f"{lines:,}" for folder, lines in sorted(by_folder(tree).items())},
    }


def by_folder(tree: Path) -> dict[str, int]:
    """Return the lines of Python in each room of the package and of the tests, and in the other folders."""
    found: dict[str, int] = {}
    for top, depth in (("src/parlay", 3), ("tests", 2), ("benchmarks", 1), ("scripts", 1), ("examples", 1)):
        for file in (tree / top).rglob("*.py"):
            folder = "/".join(file.relative_to(tree).parent.parts[:depth])
            found[folder] = found.get(folder, 0) + count_lines(file.read_text("utf-8"))
    return found


def count_lines(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def count_comments(text: str) -> int:
    return sum(token.type == tokenize.COMMENT for token in tokenize.generate_tokens(io.StringIO(text).readline))


def arguments(function: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.arg]:
    """Return a function's arguments less `self` and `cls`."""
    of = function.args
    every = [*of.posonlyargs, *of.args, *of.kwonlyargs, *(a for a in (of.vararg, of.kwarg) if a)]
    return [a for a in every if a.arg not in ("self", "cls")]


def documented(module: ast.Module) -> Iterator[Any]:
    """Yield what should have a docstring: the module, its public classes and functions, and methods of these."""
    yield module
    for node in module.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                methods = (m for m in node.body if isinstance(m, ast.FunctionDef | ast.AsyncFunctionDef))
                yield from (m for m in methods if not m.name.startswith("_"))


def largest_circle(source: Path, files: list[Path], modules: list[ast.Module]) -> int:
    """Return how many files the largest import circle has; 0 if there is none."""
    names = [".".join(file.relative_to(source).with_suffix("").parts).removesuffix(".__init__") for file in files]
    graph = networkx.DiGraph()
    for name, module in zip(names, modules, strict=True):
        for node in imports(module):
            for alias in node.names:
                for found in (f"{node.module}.{alias.name}", node.module):
                    if found in names and found != name:
                        graph.add_edge(name, found)
                        break
    circles = map(len, networkx.strongly_connected_components(graph))
    return max((size for size in circles if size > 1), default=0)


def imports(node: ast.AST) -> Iterator[ast.ImportFrom]:
    """Yield imports of names."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ImportFrom) and child.module:
            yield child
        yield from imports(child)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("commits", nargs="*")
    commits = parser.parse_args().commits
    columns = {"here": measure(ROOT)}
    for commit in commits:
        with tempfile.TemporaryDirectory() as folder:
            packed = subprocess.run(["git", "archive", commit], cwd=ROOT, capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            columns[commit] = measure(Path(folder))
    print("| |" + "".join(f" {name} |" for name in columns))
    print("|---|" + "---:|" * len(columns))
    for what in dict.fromkeys(what for column in columns.values() for what in column):
        print(f"| {what} |" + "".join(f" {column.get(what, '')} |" for column in columns.values()))


if __name__ == "__main__":
    main()
