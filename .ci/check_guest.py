"""Checks that what is shipped into a sandbox parses as Python 3.8 and imports nothing but the standard library.

Run by `make check`. pyright and ruff see types and newer built-ins; this sees the grammar and the imports, which
import-linter cannot say for "every module but these".
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = ("sandbox/guest", "sandbox/wire.py", "sandbox/edit.py", "sandbox/search.py")
OURS = ("sandbox.guest", "sandbox.wire", "sandbox.edit", "sandbox.search")
NEWER_THAN_38 = frozenset({"graphlib", "zoneinfo", "tomllib"})


def shipped_files(root: Path) -> list[Path]:
    """Every file that goes into guest.pyz."""
    found: list[Path] = []
    for name in SHIPPED:
        path = root / name
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path] if path.exists() else []
    return found


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Each import of a module, as (line, full name)."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            if node.module == "sandbox":
                yield from ((node.lineno, f"sandbox.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module or "."


def is_allowed(module: str) -> bool:
    """Whether a shipped file may import `module`."""
    if module.startswith("sandbox"):
        return any(module == name or module.startswith(f"{name}.") for name in OURS)
    top = module.partition(".")[0]
    return top in sys.stdlib_module_names and top not in NEWER_THAN_38


def problems(path: Path) -> Iterator[str]:
    """What is wrong with one shipped file, each as `file:line: sentence`."""
    try:
        tree = ast.parse(path.read_text(), filename=str(path), feature_version=(3, 8))
    except SyntaxError as error:
        yield f"{path}:{error.lineno}: not Python 3.8: {error.msg}"
        return
    for line, module in imported(tree):
        if not is_allowed(module):
            yield f"{path}:{line}: imports {module}, which is not in every sandbox"


def main() -> int:
    files = shipped_files(ROOT)
    found = [problem for path in files for problem in problems(path)]
    print("\n".join(found) if found else f"guest: {len(files)} files are Python 3.8 and need only the standard library")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
