"""What holds of every lesson: it is whole, ours passes, at least three wrong ones a task fail and are told why."""

import ast
import configparser
import doctest
import importlib
import inspect
import re
import xml.etree.ElementTree
from pathlib import Path

import pytest

import minigrad
from minigrad.course import catalogue
from minigrad.course.lesson import Student, WrongError
from minigrad.errors import MinigradError
from tests.course.wrong import Wrong

ROOT = Path(__file__).parents[2]
NUMBERS = catalogue.numbers()
TASKS = list(catalogue.tasks())
FILES = {"__init__.py", "checks.py", "page.md", "picture.py", "solution.py", "task.py"}
FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def wrong_ones(number):
    """Name of a task -> the wrong solutions of it; nothing where the lesson has no tasks."""
    if not (Path(__file__).parent / "wrong" / f"lesson{number:02d}.py").is_file():
        return {}
    return importlib.import_module(f"tests.course.wrong.lesson{number:02d}").WRONG


WRONG = {name: wrongs for number in NUMBERS for name, wrongs in wrong_ones(number).items()}
CASES = [pytest.param(name, wrong, id=f"{name}-{i}") for name in WRONG for i, wrong in enumerate(WRONG[name])]


def exercise(name):
    return catalogue.task(*catalogue.tasks()[name])


def module_of(number, name):
    return importlib.import_module(f"minigrad.course.{catalogue.folder_of(number)}.{name}")


def test_a_number_belongs_to_one_lesson_and_a_name_to_one_task():
    assert len(set(NUMBERS)) == len(NUMBERS)
    names = [task.name for number in NUMBERS for task in catalogue.lesson(number).tasks]
    assert names == TASKS and len(set(names)) == len(names)


def test_setup_cfg_has_every_lesson():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    listed = settings["options"]["packages"].split()
    assert [folder for folder in catalogue.folders() if f"minigrad.course.{folder}" not in listed] == []
    assert settings["options.package_data"]["*"] == "*.md"


@pytest.mark.parametrize("number", NUMBERS)
class TestLesson:
    def test_is_whole(self, number):
        folder = catalogue.HERE / catalogue.folder_of(number)
        assert {path.name for path in folder.iterdir() if path.name != "__pycache__"} == FILES
        lesson = catalogue.lesson(number)
        assert lesson.number == number and lesson.title and lesson.proves and lesson.minutes > 0
        assert [needed for needed in lesson.needs if needed >= number] == []
        assert [task.name for task in lesson.tasks if len(task.hints) < 3 or task.points < 1] == []

    def test_has_stubs_with_the_signatures_of_the_solutions(self, number):
        stubs = catalogue.functions_in(catalogue.text_of(number, "task.py"))
        for name, stub in stubs.items():
            assert catalogue.is_stub(stub) and ast.get_docstring(stub)
            written = getattr(module_of(number, "solution"), name)
            assert inspect.signature(getattr(module_of(number, "task"), name)) == inspect.signature(written)

    @pytest.mark.parametrize("name", ["task.py", "solution.py"])
    def test_imports_what_a_student_can(self, number, name):
        tree = ast.parse(catalogue.text_of(number, name))
        imported = [node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        imported += [alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names]
        assert [module for module in imported if module.startswith(("minigrad.course", "tests"))] == []

    def test_has_a_page_whose_examples_print_what_they_say(self, number):
        page = catalogue.text_of(number, "page.md")
        assert re.search(r"^!\[.+\]\(picture\.svg\)", page, re.MULTILINE)
        assert page.startswith(f"# {number}. ")
        blocks = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
        examples = "\n".join(block for block in blocks if ">>>" in block)
        test = doctest.DocTestParser().get_doctest(examples, {}, f"page {number}", "page.md", 0)
        assert test.examples
        minigrad.manual_seed(0)
        said = []
        doctest.DocTestRunner(optionflags=FLAGS, verbose=False).run(test, out=said.append)
        assert not said, "".join(said)

    def test_has_a_picture_that_is_the_same_every_time(self, number):
        picture = catalogue.lesson(number).picture()
        assert xml.etree.ElementTree.fromstring(picture).tag.endswith("svg")
        assert catalogue.lesson(number).picture() == picture


@pytest.mark.parametrize("name", TASKS)
class TestTask:
    def test_ours_passes_and_says_what_was_measured(self, name):
        said = exercise(name).check(Student({}, catalogue.Solutions()))
        assert re.search(r"\d", said)

    def test_has_at_least_three_wrong_ones(self, name):
        assert len(WRONG.get(name, [])) >= 3
        assert all(isinstance(wrong, Wrong) and wrong.words for wrong in WRONG[name])


@pytest.mark.parametrize(("name", "wrong"), CASES)
def test_a_wrong_one_is_told_why(name, wrong):
    with pytest.raises((WrongError, MinigradError)) as caught:
        exercise(name).check(Student({name: wrong.function}, catalogue.Solutions()))
    assert wrong.words in str(caught.value)


def test_a_stub_is_told_from_what_is_written():
    def first(text):
        return next(iter(catalogue.functions_in(text).values()))

    assert catalogue.is_stub(first('def f(x):\n    """What."""\n    raise NotImplementedError\n'))
    assert catalogue.is_stub(first('def f(x):\n    raise NotImplementedError("yet")\n'))
    assert not catalogue.is_stub(first("def f(x):\n    x += 1\n    raise NotImplementedError\n"))
    assert not catalogue.is_stub(first("def f(x):\n    raise ValueError\n"))
