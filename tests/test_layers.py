"""The shape of the source: imports point one way, in no circle, CuPy stays behind its seams, nothing is too big."""

import ast
import functools
import io
import tokenize
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCES = sorted((ROOT / "minigrad").rglob("*.py"))
SCRIPTS = sorted((ROOT / "examples").rglob("*.py"))

# A module may import from its own layer and from those above it; `errors`, `bound` and the like are files.
LAYERS = [
    ["errors", "absent", "absent_seeds", "arguments", "foreign"],
    ["backend"],
    ["autograd", "bound", "kept", "recording", "removal", "stamp", "tensor", "ops"],
    ["nn"],
    ["optim", "data"],
    ["accelerator", "amp", "backends", "cuda", "linalg", "utils"],
    ["distributed"],
    ["graph"],
    ["train"],
    ["testing"],
    ["course"],
]
ELSEWHERE = {  # files that belong to another layer than their folder
    "minigrad/autograd/profiler.py": "cuda",
    "minigrad/nn/parallel.py": "distributed",
}
LAYER_OF = {name: depth for depth, names in enumerate(LAYERS) for name in names}
# The same inside distributed: its files and folders.
FLOORS = [
    ["collectives", "rooted"],
    ["comm"],
    ["record", "run"],
    ["balance"],
    ["average", "compress"],
    ["ddp"],
    ["replicas", "bootstrap", "sharded"],
    ["living"],
    ["process_group", "process_group_members", "process_group_messages", "process_group_parts", "nn"],
    ["algorithms"],
    ["simulate"],
    ["inspect"],
    ["config"],
    ["launch"],
]
FLOOR_OF = {name: depth for depth, names in enumerate(FLOORS) for name in names}
STRANGERS = {"optim": {"data"}, "data": {"optim"}, "graph": {"optim", "data", "distributed"}}  # not below, yet unknown
ENTRY = {"__init__", "__main__"}  # gather the public names, so they import from every layer but testing and course
GATHERING = {*ENTRY, "families", "functional"}  # have the operations of every family, or of those of networks
CUPY_ALLOWED = ["minigrad/backend/"]

# At most so many: of code, so without docstrings, comments and blank lines, where it is a class.
LIMITS = {
    "lines of a class": 200,
    "methods of a class": 20,
    "imports of ours": 15,
    "lines of a file": 500,
    "lines of a function": 50,
}
# What users expect of these classes says how many methods they have: lines and methods, which may not grow.
FACADES = {
    "Tensor": (176, 32),
    "BoundMethods": (425, 0),  # those of Tensor that are bound to it, for type checkers
    "Module": (112, 27),
    "ModuleTree": (130, 25),  # the half of Module that finds things by name
    "GraphModule": (119, 35),  # a graph while it does not train
    "Graph": (80, 24),
    "DistributedDataParallel": (191, 27),
    "Communicator": (64, 32),  # what a rank can be asked
    "Front": (128, 30),  # what all communicators have, said once
    "Wrapper": (124, 36),
}


@functools.cache
def parsed(path):
    """The syntax tree of a file."""
    return ast.parse(path.read_text())


def place(path):
    return path.relative_to(ROOT).as_posix()


@functools.cache
def imported_modules(path):
    """(line, dotted name) of every import of a file, also of those inside functions."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{place(path)}:{node.lineno}: expected an absolute import"
            found += [(node.lineno, f"{node.module}.{alias.name}") for alias in node.names]
    return found


def downward(path):
    """The imports of a file that point down."""
    own = ELSEWHERE.get(place(path), path.relative_to(ROOT / "minigrad").with_suffix("").parts[0])
    if own in LAYERS[-1]:  # nothing stands below it, so it may import all, minigrad itself too
        return
    for line, name in imported_modules(path):
        parts = name.split(".")
        if parts[0] != "minigrad":
            continue
        # `from minigrad import X` names a layer, or a name that minigrad/__init__.py gathered from all of them
        target = parts[1] if len(parts) > 1 and parts[1] in LAYER_OF else None
        allowed = LAYER_OF["testing"] - 1 if own in ENTRY else LAYER_OF[own]
        if target is None or LAYER_OF[target] > allowed or target in STRANGERS.get(own, ()):
            yield f"{place(path)}:{line}: {own} imports {name}"


def beneath(path):
    """The imports of a file in distributed that point down inside it."""
    own = path.relative_to(ROOT / "minigrad" / "distributed").with_suffix("").parts[0]
    for line, name in imported_modules(path):
        if own in ENTRY or not name.startswith("minigrad.distributed."):
            continue
        target = name.split(".")[2]  # a room; or a name of the entry, which gathers from all of them
        if target not in FLOOR_OF or FLOOR_OF[target] > FLOOR_OF[own]:
            yield f"{place(path)}:{line}: {own} imports {name}"


def module_name(path):
    """Dotted, without minigrad in front; that of its folder where it is the folder's entry."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts[1:]).removesuffix(".__init__")


def dependencies():
    """module -> those that it imports, also inside functions and for a type checker."""
    modules = {module_name(path) for path in SOURCES}
    found = {}
    for path in SOURCES:
        names = {name.removeprefix("minigrad.") for _, name in imported_modules(path) if name.startswith("minigrad.")}
        found[module_name(path)] = {name if name in modules else name.rpartition(".")[0] for name in names}
    return found


def circles(graph):
    """The sets of modules each of which depends on all others of the set."""

    def reached(start):
        seen, stack = set(), [start]
        while stack:
            new = graph[stack.pop()] - seen
            seen |= new
            stack += new
        return seen

    behind = {module: reached(module) for module in graph}
    sets = {frozenset({other for other in behind[module] if module in behind[other]}) for module in graph}
    return [set(found) for found in sets if found]


@functools.cache
def code_lines(path):
    """The numbers of the lines that hold code: no docstrings, comments or blank lines."""
    lines = set()
    for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
        if token.string.strip() and token.type not in (tokenize.COMMENT, tokenize.ENDMARKER):
            lines |= set(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(parsed(path)):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and ast.get_docstring(node) is not None:
            lines -= set(range(node.body[0].lineno, node.body[0].end_lineno + 1))
    return lines


@functools.cache
def classes(path):
    """The name of every class of a file, with its lines of code and its methods."""
    found = []
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.ClassDef):
            methods = [each for each in node.body if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef))]
            length = len(code_lines(path) & set(range(node.lineno, node.end_lineno + 1)))
            found.append((node.name, length, len(methods)))
    return found


def measured(what):
    """subject -> how much of that it has; the facades not among them."""
    if what == "imports of ours":
        graph = dependencies()
        return {place(path): len(graph[module_name(path)]) for path in SOURCES if path.stem not in GATHERING}
    if what == "lines of a file":
        return {place(path): len(path.read_text().splitlines()) for path in [*SOURCES, *SCRIPTS]}
    if what == "lines of a function":
        found = ((path, *function) for path in [*SOURCES, *SCRIPTS] for function in functions(path))
        return {f"{place(path)}:{node.lineno}: {node.name}": length for path, node, length in found}
    column, counts = (1 if what == "lines of a class" else 2), {}
    for row in (row for path in SOURCES for row in classes(path) if row[0] not in FACADES):
        counts[row[0]] = max(row[column], counts.get(row[0], 0))
    return counts


def functions(path):
    """Every function of a file with its length: lines of code and comments, the docstring not counted."""
    for node in ast.walk(parsed(path)):
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

    return list(walk(parsed(path).body))


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
        if path.parent.name not in ("gpu", "kernels") and "cupy" in path.read_text()  # parsing all takes long
        for line, name in imported_modules(path)
        if name.split(".")[0] in ("cupy", "cupyx")
    ]
    assert found == []


def test_imports_inside_distributed_point_up():
    files = [path for path in SOURCES if path.is_relative_to(ROOT / "minigrad" / "distributed")]
    rooms = {path.relative_to(ROOT / "minigrad" / "distributed").with_suffix("").parts[0] for path in files}
    assert rooms - set(FLOOR_OF) - ENTRY == set()
    assert [line for path in files for line in beneath(path)] == []


def test_files_do_not_import_in_a_circle():
    """Neither where the program runs nor for a type checker alone: each can be read before those that use it."""
    assert circles(dependencies()) == []


@pytest.mark.parametrize("file", ELSEWHERE)
def test_what_is_elsewhere_holds_names_alone_and_nobody_needs_it(file):
    statements = parsed(ROOT / file).body[1:]  # behind the docstring
    assert {type(statement) for statement in statements} == {ast.ImportFrom, ast.Assign}
    assert module_name(ROOT / file) not in set().union(*dependencies().values())


@pytest.mark.parametrize("what", LIMITS)
def test_nothing_is_too_big(what):
    assert {subject: count for subject, count in measured(what).items() if count > LIMITS[what]} == {}


def test_a_word_has_one_meaning():
    """No two classes have one name, and a plan is that of buckets."""
    public = [name for path in SOURCES for name, *_ in classes(path) if not name.startswith("_")]
    # FlowBuilder of train makes a Graph; Mean is one thing, of what a loop measures and of what ranks trained
    twice = {name for name in public if public.count(name) > 1} - {"FlowBuilder", "Mean"}
    assert twice == set()
    files = [place(path).removeprefix("minigrad/") for path in SOURCES if "plan" in path.stem]
    plans = {name for name in public if "Plan" in name} - {"BucketPlan"}
    assert {*files, *plans} == set()


def test_facades_do_not_grow():
    found = {name: counts for path in SOURCES for name, *counts in classes(path) if name in FACADES}
    grown = {name: c for name, c in found.items() if c[0] > FACADES[name][0] or c[1] > FACADES[name][1]}
    assert grown == {} and set(found) == set(FACADES)


def test_everything_public_has_a_docstring():
    modules = [place(path) for path in [*SOURCES, *SCRIPTS] if ast.get_docstring(parsed(path)) is None]
    assert modules == []
    assert [line for path in SOURCES for line in undocumented(path)] == []


def test_each_folder_of_tests_is_a_package():
    """Else two tests of one name would be one module to pytest."""
    folders = {path.parent for path in (ROOT / "tests").rglob("*.py")}
    assert [place(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_circles():
    graph = {"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": set(), "e": {"d", "f"}, "f": {"e"}}
    assert sorted(map(sorted, circles(graph))) == [["a", "b", "c"], ["e", "f"]]


def test_size_of_a_class(tmp_path):
    method = ["    def f(self):", "        # why", '        return """a', 'b"""']
    text = "\n".join(["class C:", '    """One.', "", '    Two."""', "", "    x = 1  # why", "", *method, ""])
    (tmp_path / "source.py").write_text(text)
    assert list(classes(tmp_path / "source.py")) == [("C", 5, 1)]


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
