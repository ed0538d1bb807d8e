"""The course's command line and its marks: what a student may do wrong ends in a mark that says so."""

import json
import os
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from minigrad.course import catalogue, commands, folder, grading, judge, marks, syllabus
from minigrad.course.marks import Mark
from minigrad.errors import ArgumentError

FIRST = "combine_gradients"


@pytest.fixture
def mine(tmp_path, monkeypatch, capsys):
    """A student's folder, started with lesson 1."""
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "adapters", raising=False)
    assert commands.main(["start", "1", str(tmp_path / "mine")]) == 0
    capsys.readouterr()
    yield tmp_path / "mine"
    sys.modules.pop("adapters", None)


def write(mine, text):
    (mine / "adapters.py").write_text(text)


def judged(mine):
    return judge.judge(mine, catalogue.task(1, 1))


def with_body(body):
    return f"def combine_gradients(comm, gradient, samples):\n    {body}\n"


class TestStart:
    def test_what_is_written_for_a_lesson(self, mine):
        assert (mine / "lesson01" / "page.md").read_text() == catalogue.text_of(1, "page.md")
        assert (mine / "lesson01" / "picture.svg").read_text().startswith("<svg")
        assert set(catalogue.functions_in((mine / "adapters.py").read_text())) == {FIRST, "accumulation_weights"}
        assert "\nimport numpy as np\n\nimport minigrad\n" in (mine / "adapters.py").read_text()
        assert judge.written_in((mine / "adapters.py").read_text()).isdisjoint({FIRST, "accumulation_weights"})

    def test_what_was_written_there_stays(self, mine):
        own = "# mine\n" + with_body("return None")
        write(mine, own)
        folder.start(1, mine)
        text = (mine / "adapters.py").read_text()
        assert text.startswith(own) and text.count("def combine_gradients") == 1
        assert "def accumulation_weights" in text[len(own):]
        folder.start(1, mine)
        assert (mine / "adapters.py").read_text() == text

    def test_stubs_of_all_lessons_in_one_file_can_be_imported(self, mine):
        for number in catalogue.numbers():
            stubs, _ = folder.stubs_for(number, (mine / "adapters.py").read_text())
            with (mine / "adapters.py").open("a") as file:
                file.write(stubs)
        assert set(catalogue.functions_in((mine / "adapters.py").read_text())) == set(catalogue.tasks())
        assert judged(mine) == ("not written", "not written yet")

    def test_a_file_that_is_no_python_is_left_alone(self, mine, capsys):
        write(mine, "def f(:\n")
        assert commands.main(["start", "1", str(mine)]) == 2
        assert "SyntaxError in line 1" in capsys.readouterr().err
        assert (mine / "adapters.py").read_text() == "def f(:\n"


class TestJudge:
    def test_ours_passes(self, mine):
        write(mine, catalogue.text_of(1, "solution.py"))
        verdict, words = judged(mine)
        assert verdict == "passed" and "divisions of a batch" in words

    @pytest.mark.parametrize("text", ["", "import numpy\n", with_body("raise NotImplementedError")])
    def test_what_is_missing_is_not_written_yet(self, mine, text):
        write(mine, text)
        assert judged(mine) == ("not written", "not written yet")

    @pytest.mark.parametrize(("text", "words"), [
        (with_body("comm.all_reduce(gradient).wait(); gradient /= comm.world_size"), "the mean of the ranks' means"),
        (with_body("\n    x = {}\n    x['key']"), "line 4 of adapters.py: KeyError: 'key'"),
        (with_body("import sys; sys.exit(3)"), "expected the function to return or to raise, got sys.exit(3)"),
        (with_body("accumulation_weights(comm, [1])") + "def accumulation_weights(comm, samples):\n"
         "    raise NotImplementedError\n", "lesson01_means.solution import accumulation_weights"),
        ("\ndef combine_gradients(:\n", "can't be imported: line 2 of adapters.py: SyntaxError"),
        ("\n\n1 / 0\n", "can't be imported: line 3 of adapters.py: ZeroDivisionError"),
        ("import no_such_module\n", "can't be imported: line 1 of adapters.py: ModuleNotFoundError"),
        (with_body("import sys; sys.exit(0)"), "expected the function to return or to raise, got sys.exit(0)"),
        (with_body("yield"), "it has a yield"),
        (with_body("raise ValueError('\\udc80')"), "ValueError: \\udc80"),
        ("class Error(Exception):\n    def __str__(self):\n        1 / 0\nraise Error\n", "Error: it can't be shown"),
        ("raise SystemExit(4)\n", "it exits, by SystemExit(4)"),
        ("combine_gradients = 3\n", "not written yet"),
        ("def combine_gradients():\n    pass\n", "TypeError: combine_gradients() takes 0 positional arguments"),
    ])
    def test_what_is_wrong_is_said(self, mine, text, words):
        write(mine, text)
        verdict, said = judged(mine)
        assert verdict != "passed" and words in said

    @pytest.mark.parametrize("head", [b"\xef\xbb\xbf", b"# -*- coding: latin-1 -*-\n# caf\xe9\n"])
    def test_a_file_is_in_any_encoding_that_python_reads(self, mine, head):
        text = head + with_body("comm.all_reduce(gradient)").replace("\n", "\r\n").encode()
        (mine / "adapters.py").write_bytes(text)
        folder.start(2, mine)
        assert (mine / "adapters.py").read_bytes().startswith(text)
        assert judged(mine)[0] == "wrong" and "can't be imported" not in judged(mine)[1]

    def test_one_that_python_does_not_read_is_refused(self, mine):
        (mine / "adapters.py").write_bytes(b"x = 'caf\xe9'\n")
        assert "can't be imported" in judged(mine)[1] and "utf-8" in judged(mine)[1]
        with pytest.raises(ArgumentError, match="to be Python, got a SyntaxError"):
            folder.start(1, mine)

    def test_a_stub_that_is_replaced_further_down_is_written(self, mine):
        stub = "def combine_gradients(comm, gradient, samples):\n    raise NotImplementedError\n"
        write(mine, stub + with_body("return 1").replace("combine", "my") + "combine_gradients = my_gradients\n")
        assert judged(mine)[0] == "wrong"

    @pytest.mark.parametrize("change", [
        "import minigrad.course.lesson01_means.checks as checks\nchecks.check_combine_gradients = checks.SHARDS = 1",
        "import minigrad.course.lesson as lesson\nlesson.Student.__getattr__ = lambda self, name: None",
        "import numpy\nnumpy.allclose = lambda *a, **k: True",
    ])
    def test_a_mark_that_another_minigrad_would_give_is_none(self, mine, monkeypatch, change):
        from minigrad.course import lesson
        from minigrad.course.lesson01_means import checks

        for place, name in ((checks, "check_combine_gradients"), (lesson.Student, "__getattr__"), (np, "allclose")):
            monkeypatch.setattr(place, name, getattr(place, name))
        monkeypatch.setattr(checks, "SHARDS", checks.SHARDS)
        passes = replace(catalogue.task(1, 1), check=lambda student: "1")
        write(mine, change + "\n" + with_body("return 1"))
        verdict, said = judge.judge(mine, passes)
        assert verdict == "wrong" and "put something else in the place of" in said
        write(mine, with_body("return 1"))
        monkeypatch.undo()

    def test_what_lies_beside_the_file_can_be_imported(self, mine):
        (mine / "beside.py").write_text(catalogue.text_of(1, "solution.py"))
        write(mine, "from beside import combine_gradients\n")
        assert judged(mine)[0] == "passed"
        sys.modules.pop("beside")


class TestProcess:
    """What only a process shows: prints, hangs and ends."""

    def test_what_goes_on_is_stopped_and_of_endless_prints_the_last_are_shown(self, mine, capsys):
        body = "subprocess.Popen(['sleep', '600'])\n    while True:\n        print('again')"
        write(mine, "import subprocess\n" + with_body(body))
        assert commands.main(["check", "1.1", "--dir", str(mine), "--timeout", "0.5"]) == 1
        said = capsys.readouterr().out
        assert "1.1 combine_gradients: it was not over after 0.5 s and was stopped" in said
        assert "    printed: ... " in said and "    printed: again\n" in said
        assert len(said) < 9 * grading.SHOWN_CHARACTERS
        mark = marks.read(mine)["1.1"]
        assert (mark.passed, mark.points, mark.tries, mark.minigrad) == (False, 0, 1, marks.this_minigrad())

    def test_a_process_that_ends_without_an_answer(self, mine):
        write(mine, "import os\n" + with_body("os._exit(7)"))
        mark, _ = grading.check(mine, 1, 1)
        assert not mark.passed and "exited with status 7 before the check was over" in mark.words

    def test_what_others_write_into_the_pipe_of_the_check_is_no_mark(self, mine):
        body = "for fd in range(3, 30):\n        try: os.write(fd, b'x\\n')\n        except OSError: pass"
        write(mine, "import os\n" + with_body(body))
        mark, _ = grading.check(mine, 1, 1)
        assert not mark.passed and "wrote into its pipe" in mark.words

    def test_a_task_that_passes_and_one_that_is_not_written(self, mine, capsys):
        text = catalogue.text_of(1, "solution.py")
        stubs = catalogue.text_of(1, "task.py").partition("def accumulation_weights")[2]
        write(mine, text.partition("def accumulation_weights")[0] + "def accumulation_weights" + stubs)
        assert commands.main(["check", "1", "--dir", str(mine)]) == 1
        first, second = capsys.readouterr().out.splitlines()
        assert first.startswith("1.1 combine_gradients: passed, 1 of 1 points: 9 divisions")
        assert second == "1.2 accumulation_weights: not written yet"
        found = [(mark.passed, mark.points, mark.tries) for mark in marks.read(mine).values()]
        assert found == [(True, 1, 1), (False, 0, 0)]


class TestMarks:
    def test_each_hint_comes_once_and_the_last_stays(self, mine, capsys):
        for _ in range(4):
            assert commands.main(["hint", "1.1", "--dir", str(mine)]) == 0
        *shown, last = capsys.readouterr().out.splitlines()
        assert shown == [f"hint {i} of 3: {hint}" for i, hint in enumerate(catalogue.task(1, 1).hints, start=1)]
        assert last == shown[2]
        assert marks.read(mine)["1.1"].hints == 3

    def test_a_solution_is_shown_after_a_try(self, mine, capsys):
        assert commands.main(["solution", "1.1", "--dir", str(mine)]) == 2
        assert "expected a try of 1.1 first" in capsys.readouterr().err
        marks.change(mine, "1.1", lambda old: replace(old, tries=1))
        assert commands.main(["solution", "1.1", "--dir", str(mine)]) == 0
        shown = capsys.readouterr().out
        assert "def combine_gradients" in shown and "def accumulation_weights" not in shown
        assert commands.main(["solution", "1", "--dir", str(mine)]) == 2
        assert marks.read(mine)["1.1"].solution_seen and "our solution was seen" in marks.summary(mine)

    def test_the_score_adds_up_and_names_another_minigrad(self, mine, capsys):
        def passed(old):
            return replace(old, passed=True, points=1, tries=2, minigrad=marks.this_minigrad())

        marks.change(mine, "1.1", passed)
        marks.change(mine, "1.2", lambda old: replace(passed(old), minigrad="0.1.0 0123456789ab"))
        assert commands.main(["score", "--dir", str(mine)]) == 0
        *lines, last = capsys.readouterr().out.splitlines()
        [first, second] = [line for line in lines if " 1.1 " in line or " 1.2 " in line]
        assert "another minigrad" not in first and "made with another minigrad, 0.1.0 0123456789ab" in second
        possible = sum(task.points for number in catalogue.numbers() for task in catalogue.lesson(number).tasks)
        assert last == f"2 of {possible} points; this minigrad: {marks.this_minigrad()}"
        marks.change(mine, "1.1", lambda old: replace(old, passed=False, points=0))
        assert "2 tries, the last not passed" in marks.summary(mine)

    def test_the_digest_is_of_every_source(self, monkeypatch, tmp_path):
        def digest():
            marks.this_minigrad.cache_clear()
            return marks.this_minigrad()

        before = digest()
        (tmp_path / "deep").mkdir()
        (tmp_path / "deep" / "a.py").write_text("1")
        monkeypatch.setattr("minigrad.__file__", str(tmp_path / "__init__.py"))
        one = digest()
        (tmp_path / "deep" / "a.py").write_text("2")
        assert len({before, one, digest()}) == 3
        monkeypatch.undo()
        assert digest() == before

    def test_marks_are_whole_or_refused(self, mine):
        marks.change(mine, "1.2", lambda old: old)
        marks.change(mine, "1.1", lambda old: replace(old, hints=1))
        assert marks.read(mine) == {"1.1": Mark("1.1", hints=1), "1.2": Mark("1.2")}
        assert [path.name for path in mine.glob(".marks.json*")] == []
        for text in ("{", "[]", json.dumps({"marks": {"1.1": {"no": "task"}}}),
                     json.dumps({"marks": {"one": {"task": "one"}}}),
                     json.dumps({"marks": {"1.1": {"task": "1.1", "points": "1"}}})):
            (mine / "marks.json").write_text(text)
            with pytest.raises(ArgumentError, match="to begin anew move it away"):
                marks.read(mine)


class TestCommandLine:
    @pytest.mark.parametrize(("line", "words"), [
        (["check", "99"], "expected the number of a lesson"),
        (["check", "1.9"], "expected a task of lesson 1, 1 to 2, got 1.9"),
        (["check", "one"], "such as 1 or 1.2, got 'one'"),
        (["start", "1.2", "x"], "start 1"),
        (["hint", "1"], "hint 1.1"),
        (["check", "1", "--timeout", "0"], "timeout_s"),
        (["check", "1", "--dir", "nowhere"], "start LESSON nowhere"),
        (["start", "1", "adapters.py"], "adapters.py"),
        (["score", "--dir", "nowhere"], "expected a folder"),
    ])
    def test_what_is_none_ends_with_status_2(self, mine, monkeypatch, capsys, line, words):
        monkeypatch.chdir(mine)
        assert commands.main(line) == 2
        assert words in capsys.readouterr().err

    def test_start_adds_to_the_folder_that_one_is_in(self, mine, monkeypatch, capsys):
        monkeypatch.chdir(mine.parent)
        assert commands.main(["start", "5"]) == 2
        assert "start LESSON ." in capsys.readouterr().err
        monkeypatch.chdir(mine)
        assert commands.main(["start", "5"]) == 0
        assert "def get_ddp_naive" in (mine / "adapters.py").read_text()

    def test_a_command_that_there_is_not(self, capsys):
        with pytest.raises(SystemExit) as ended:
            commands.main(["grade"])
        assert ended.value.code == 2

    def test_a_hunt_is_begun_and_answered_and_scored(self, mine, monkeypatch, capsys):
        monkeypatch.chdir(mine)
        assert commands.main(["hunt", "begin"]) == 0
        assert "minigrad has one bug, or none" in capsys.readouterr().out
        assert commands.main(["hunt", "answer", "no such thing"]) in (1, 2)
        assert commands.main(["score"]) == 0
        assert "points; this minigrad" in capsys.readouterr().out

    def test_list_and_syllabus_have_every_lesson(self, capsys):
        for line in (["list"], ["syllabus"]):
            assert commands.main(line) == 0
            shown = capsys.readouterr().out
            assert [n for n in catalogue.numbers() if catalogue.lesson(n).title not in shown] == []


def test_the_syllabus_is_that_of_the_lessons():
    assert syllabus.PATH.read_text() == syllabus.text(), "python -m minigrad.course.syllabus writes it again"


@pytest.mark.course
def test_the_markers_of_pytest_do_the_same_check(mine):
    text = catalogue.text_of(1, "solution.py")
    write(mine, text)
    environment = {**os.environ, "PYTHONPATH": str(catalogue.HERE.parents[1])}
    options = ["-q", "-p", "no:cacheprovider", "-m", "lesson1_2", "--strict-markers"]
    command = [sys.executable, "-m", "pytest", *options, "."]
    done = subprocess.run(command, cwd=mine, env=environment, capture_output=True, text=True, check=False)
    assert "1 passed, 1 deselected" in done.stdout, done.stdout
    assert list(marks.read(mine)) == ["1.2"] and marks.read(mine)["1.2"].passed
