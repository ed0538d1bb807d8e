"""The hunt: which bug it is stays unknown, looking is free, a near answer is right, a wrong one costs a point."""

import argparse
import json
import re
import subprocess
import sys

import pytest

from minigrad.course import hunt as hunting
from minigrad.course.hunt import POINTS, STATE, Hunt
from minigrad.errors import ArgumentError
from minigrad.testing.mutants import MUTANTS, PROGRAMS

ODD = (2, 10)  # level and seed of "the odd rank out is left out of sums"; its place is that of the catalogue
NONE = (3, 0)  # of a hunt without a bug


def place():
    return next(mutant for mutant in MUTANTS.values() if mutant.name == "the odd rank out is left out of sums").place


def test_a_hunt_is_drawn_by_level_and_seed_alone():
    drawn = {(level, seed): Hunt(level, seed)._mutant for level in (1, 2, 3) for seed in range(60)}
    assert drawn == {key: Hunt(*key)._mutant for key in drawn}
    assert all(mutant is None or mutant.level == level for (level, _), mutant in drawn.items())
    without = [key for key, mutant in drawn.items() if mutant is None]
    assert 10 <= len(without) <= 40 and NONE in without  # one in eight, of 180
    assert len({mutant.number for mutant in drawn.values() if mutant}) > 50
    assert all(Hunt(*key).program.name in PROGRAMS for key in without)


def test_what_answers_are_right():
    where, own = place(), Hunt(*ODD)
    right = [f"collectives.py:{where.line}", f"minigrad/distributed/collectives.py:{where.first_line}", str(where.file)]
    right[-1] += f":{where.last_line}"
    assert all(Hunt(*ODD).answer(said).right for said in right)
    number = next(number for number, mutant in MUTANTS.items() if mutant.place == where and "odd" in mutant.name)
    assert Hunt(*ODD).answer(number).right and Hunt(*ODD).answer(f" {number} ").right
    wrong = [f"other_collectives.py:{where.line}", f"comm/collectives.py:{where.line}", "no bug", str(number + 1)]
    wrong += [f"collectives.py:{where.first_line - 1}", f"collectives.py:{where.last_line + hunting.NEAR + 1}"]
    for count, said in enumerate(wrong, 1):
        told = own.answer(said)
        assert not told.right and told.points == max(0, POINTS - count) == own.points
    assert not own.found
    told = own.answer(number)
    assert told.right and told.points == 0 and "the odd rank out is left out of sums (number" in told.words
    assert own.found and not own.answer("no bug").right and own.points == 0  # nothing is lost once it is found


def test_no_bug_is_an_answer():
    hunt = Hunt(*NONE)
    assert not hunt.answer("passes.py:100").right and not hunt.answer(17).right
    assert hunt.answer("no bug").words == f"Right: there is no bug. {POINTS - 2} points."
    assert not Hunt(*ODD).answer("no bug").right


@pytest.mark.parametrize(
    "said", ["", "passes.py", "passes:12", "passes.py:", "-1", "0", "99999", "nothing", "a.py:x", "²", ".py:12"]
)
def test_what_is_no_answer_costs_nothing(said):
    hunt = Hunt(*ODD)
    with pytest.raises(ArgumentError, match="Hunt.answer: expected"):
        hunt.answer(said)
    assert hunt.points == POINTS


def test_a_hint_costs_a_point():
    hunt = Hunt(*ODD)
    assert "twin" in hunt.hint() and hunt.points == POINTS - 1
    assert "finds nothing" in Hunt(*NONE).hint()


def test_a_hint_costs_nothing_once_the_bug_is_found():
    hunt = Hunt(*NONE)
    hunt.answer("no bug")
    hunt.hint()
    assert hunt.points == POINTS


def test_looking_shows_the_bug_and_costs_nothing():
    hunt = Hunt(*ODD)
    assert "rank 2 is left out of the sum" in hunt.look("twin") and hunt.look("twin", right=True).endswith("process")
    assert hunt.look("loss") != hunt.look("loss", right=True)
    assert hunt.points == POINTS
    with pytest.raises(ArgumentError, match="tool"):
        hunt.look("debugger")


def test_a_script_of_ones_own_has_the_bug(tmp_path, capfd):
    script = tmp_path / "mine.py"
    script.write_text(
        "import sys\nfrom minigrad.distributed.collectives import pairwise\n"
        "def add(a, b):\n    a[0] += b[0]\n"
        "if __name__ == '__main__':\n    print(pairwise([[1], [2], [4]], add), sys.argv[1:])\n    sys.exit(3)\n"
    )
    assert Hunt(*ODD).run(script, ["x"]) == 3
    assert capfd.readouterr().out == "[3] ['x']\n"  # 1 + 2, and 4 is the odd one
    assert Hunt(*NONE).run(script) == 3
    assert capfd.readouterr().out == "[7] []\n"
    with pytest.raises(ArgumentError, match="expected a script"):
        Hunt(*ODD).run(tmp_path / "none.py")


def test_what_a_script_raises_is_told_with_its_line(tmp_path, capfd):
    script = tmp_path / "raises.py"
    script.write_text("def half(x):\n    return x / 0\n\nhalf(2)\n")
    assert Hunt(*NONE).run(script) == 1
    told = capfd.readouterr().err
    assert "line 2, in half" in told and "hunt.py" not in told
    assert told.endswith("ZeroDivisionError: division by zero\n")
    script.write_text("import sys\nsys.exit('enough')\n")
    assert Hunt(*NONE).run(script) == 1 and capfd.readouterr().err == "enough\n"


def test_a_script_may_fork(tmp_path, capfd):
    script = tmp_path / "forks.py"
    script.write_text(
        "import multiprocessing\nfrom minigrad.distributed.collectives import pairwise\n"
        "def add(a, b):\n    a[0] += b[0]\n"
        "child = multiprocessing.get_context('fork').Process(\n"
        "    target=lambda: print(pairwise([[1], [2], [4]], add), flush=True))\n"
        "child.start()\nchild.join()\n"
    )
    assert Hunt(*ODD).run(script) == 0
    assert capfd.readouterr().out == "[3]\n"  # the bug is there too


def test_the_file_counts_tries_and_has_no_answer(tmp_path):
    path = tmp_path / "hunts.json"
    hunt = Hunt(*ODD, state=path)
    hunt.answer("no bug")
    hunt.hint()
    again = Hunt(*ODD, state=path)
    assert again.points == POINTS - 2 and not again.found
    text = path.read_text()
    assert "odd" not in text and "collectives" not in text and not re.search(r'": \d{2,}', text)
    other = tmp_path / "other.json"
    Hunt(*ODD, state=other).hint()
    answers = [json.loads(each.read_text())["level 2 seed 10"]["answer"] for each in (path, other)]
    assert answers[0] != answers[1]  # a salt of its own
    again.answer(f"collectives.py:{place().line}")
    Hunt(*NONE, state=path).answer(17)
    assert hunting.score(path) == (POINTS - 2, 2) and Hunt(*ODD, state=path).found


def test_a_file_that_is_none_or_of_another_bug_is_refused(tmp_path):
    path = tmp_path / "hunts.json"
    one = {"salt": "", "answer": "", "tries": "x", "hints": 0, "looks": {}, "found": False}
    for text in ("[1]", "{", '{"level 2 seed 10": {}}', json.dumps({"level 2 seed 10": one})):
        path.write_text(text)
        with pytest.raises(ArgumentError, match="to be a file of hunts, got something else"):
            Hunt(*ODD, state=path)
    path.unlink()
    Hunt(*ODD, state=path).hint()
    hunts = json.loads(path.read_text())
    path.write_text(json.dumps({"level 2 seed 3": hunts["level 2 seed 10"]}))
    with pytest.raises(ArgumentError, match="the bug that .* was begun with, got another one"):
        Hunt(2, 3, state=path)


@pytest.mark.parametrize(("level", "seed"), [(0, 0), (4, 0), (1, -1), (1.5, 0)])
def test_other_levels_are_refused(level, seed):
    with pytest.raises(ArgumentError):
        Hunt(level, seed)


def command(tmp_path, *words):
    parser = argparse.ArgumentParser("hunt")
    hunting.arguments(parser)
    return hunting.carry_out(parser.parse_args(["--level", "2", "--seed", "10", "--dir", str(tmp_path), *words]))


def test_the_command_line(tmp_path, capsys):
    def said(*words, status=0):
        assert command(tmp_path, *words) == status
        return capsys.readouterr().out

    assert "def unequal(comm" in said() and "minigrad has one bug, or none" in said()
    assert "the odd rank out" in said("candidates") and "wait" not in said("hint").split(".")[0]
    assert "step     rank 0" in said("look", "loss") != said("--right", "look", "loss")
    assert said("answer", "no", "bug", status=1) == f"That is not it. {POINTS - 2} points are left.\n"
    assert said("answer", f"collectives.py:{place().line}").startswith("Right: the odd rank out")
    for words in (["look"], ["look", "a", "b"], ["run"], ["answer"]):
        with pytest.raises(ArgumentError):
            command(tmp_path, *words)
    assert (tmp_path / STATE).is_file()
    with pytest.raises(ArgumentError, match="expected a folder"):
        command(tmp_path / "none", "look", "loss")


def test_a_tool_that_cannot_follow_the_program_is_not_offered(capsys):
    for seed in (10, 5):  # "unequal", and "local steps", which no twin follows
        options = argparse.ArgumentParser()
        hunting.arguments(options)
        hunting.carry_out(options.parse_args(["--level", "2", "--seed", str(seed)]))
        offered = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("look TOOL"))
        assert ("twin" in offered) == Hunt(2, seed).program.twins == (seed == 10)


def test_a_reader_that_has_seen_enough_is_no_error():
    line = f"{sys.executable} -m minigrad.course hunt --level 2 candidates | true"
    assert subprocess.run(line, shell=True, capture_output=True, text=True, check=True).stderr == ""
