"""The shape of the source: imports point one way, CuPy stays behind its seams, files and functions stay small."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "minigrad").rglob("*.py"))
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))

# A module may import from its own layer and from those above it; `errors`, `bound` and the like are files.
LAYERS = [
    ["errors", "arguments"],
    ["backend"],
    ["autograd", "bound", "kept", "stamp", "tensor", "ops"],
    ["nn"],
    ["optim", "data"],
    ["distributed"],
    ["graph"],
    ["train"],
    ["testing"],
]
LAYER_OF = {name: depth for depth, names in enumerate(LAYERS) for name in names}
SIBLINGS = {"optim": "data", "data": "optim"}  # in one layer, and yet know nothing of each other
ENTRY = {"__init__", "__main__"}  # gather the public names, so they import from every layer but testing
CUPY_ALLOWED = ["minigrad/backend/", "minigrad/distributed/comm/nccl/"]


def place(path):
    return path.relative_to(ROOT).as_posix()


def imported_modules(path):
    """(line, dotted name) of every import of a file, also of those inside functions."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}:{node.lineno}: expected an absolute import"
            yield from ((node.lineno, f"{node.module}.{alias.name}") for alias in node.names)


def downward(path):
    """The imports of a file that point down."""
    own = path.relative_to(ROOT / "minigrad").with_suffix("").parts[0]
    for line, name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "minigrad":
            continue
        # `from minigrad import X` names a layer, or a name that minigrad/__init__.py gathered from all of them
        target = parts[1] if len(parts) > 1 and parts[1] in LAYER_OF else None
        allowed = max(LAYER_OF.values()) - 1 if own in ENTRY else LAYER_OF[own]
        if target is None or LAYER_OF[target] > allowed or target == SIBLINGS.get(own):
            yield f"{place(path)}:{line}: {own} imports {name}"


def functions(path):
    """Every function of a file with its length: lines of code and comments, the docstring not counted."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = node.body[0]
            documented = ast.get_docstring(node) is not None
            docstring = first.end_lineno - first.lineno + 1 if documented else 0
            yield node, node.end_lineno - node.lineno + 1 - docstring


def undocumented(path):
    """The public functions, classes and methods of a file that lack a docstring.

    Stubs of a type checker, overloads and setters have theirs elsewhere.
    """

    def walk(body):
        for node in body:
            if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                continue
            decorators = {ast.unparse(decorator).split(".")[-1] for decorator in node.decorator_list}
            if node.name.startswith("_") or decorators & {"overload", "setter"}:
                continue
            if ast.get_docstring(node) is None:
                yield f"{place(path)}:{node.lineno}: {node.name}"
            if isinstance(node, ast.ClassDef):
                yield from walk(node.body)

    return list(walk(ast.parse(path.read_text()).body))


def test_every_file_belongs_to_a_layer():
    parts = {path.relative_to(ROOT / "minigrad").with_suffix("").parts[0] for path in SOURCES}
    assert parts - set(LAYER_OF) - ENTRY == set()


def test_imports_point_up():
    assert [line for path in SOURCES for line in downward(path)] == []


def test_cupy_is_imported_only_behind_the_seams():
    found = [
        f"{place(path)}:{line}: {name}"
        for path in SOURCES
        for line, name in imported_modules(path)
        if name.split(".")[0] in ("cupy", "cupyx", "cupy_backends")
        and not any(place(path).startswith(allowed) for allowed in CUPY_ALLOWED)
    ]
    assert found == []


def test_tests_and_examples_import_cupy_through_the_backend():
    """Only the tests that compile or run kernels may need it."""
    files = [*SCRIPTS, *sorted((ROOT / "tests").rglob("*.py"))]
    found = [
        f"{place(path)}:{line}: {name}"
        for path in files
        if path.parent.name not in ("gpu", "kernels")
        for line, name in imported_modules(path)
        if name.split(".")[0] in ("cupy", "cupyx")
    ]
    assert found == []


def test_files_are_short():
    lengths = {place(path): len(path.read_text().splitlines()) for path in [*SOURCES, *SCRIPTS]}
    assert {name: length for name, length in lengths.items() if length >= 500} == {}


def test_functions_are_short():
    found = {
        f"{place(path)}:{node.lineno}: {node.name}": length
        for path in [*SOURCES, *SCRIPTS]
        for node, length in functions(path)
        if length >= 50
    }
    assert found == {}


def test_everything_public_has_a_docstring():
    modules = [place(path) for path in [*SOURCES, *SCRIPTS] if ast.get_docstring(ast.parse(path.read_text())) is None]
    assert modules == []
    assert [line for path in SOURCES for line in undocumented(path)] == []


def test_each_folder_of_tests_is_a_package():
    """Else two tests of one name would be one module to pytest."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [place(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


@pytest.mark.parametrize(
    "text, name, length",
    [
        ("def f():\n    return 1\n", "f", 2),
        ('def f():\n    """One.\n\n    Two.\n    """\n    return 1\n', "f", 2),
        ("class C:\n    def g(self):\n        # why\n        return 1\n", "g", 3),
    ],
    ids=["plain", "docstring", "method"],
)
def test_length_of_a_function(tmp_path, text, name, length):
    (tmp_path / "source.py").write_text(text)
    [(node, counted)] = functions(tmp_path / "source.py")
    assert (node.name, counted) == (name, length)
