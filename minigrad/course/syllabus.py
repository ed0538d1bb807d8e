"""SYLLABUS.md, whose table is made from the lessons: `python -m minigrad.course.syllabus` writes it again."""

from __future__ import annotations

from minigrad.course import catalogue
from minigrad.nn.whole_file import replace_file

PATH = catalogue.HERE / "SYLLABUS.md"
_BEGINS, _ENDS = "<!-- the table: made from the lessons -->\n", "<!-- its end -->\n"


def table() -> str:
    """Of all lessons that are there, as Markdown."""
    rows = ["| # | Lesson | Minutes | After | To write | At its end one has seen that |", "|---|---|---|---|---|---|"]
    minutes = points = 0
    for number in catalogue.numbers():
        lesson = catalogue.lesson(number)
        needs = ", ".join(map(str, lesson.needs)) or "-"
        tasks = ", ".join(f"`{task.name}`" for task in lesson.tasks) or "-"
        rows.append(f"| {number} | {lesson.title} | {lesson.minutes} | {needs} | {tasks} | {lesson.proves} |")
        minutes += lesson.minutes
        points += sum(task.points for task in lesson.tasks)
    rows.append(f"\nTogether {minutes / 60:.0f} hours and {points} points.")
    return "\n".join(rows) + "\n"


def text() -> str:
    """All of it, with the table of the lessons that are there."""
    before, _, rest = PATH.read_text(encoding="utf-8").partition(_BEGINS)
    return f"{before}{_BEGINS}\n{table()}\n{_ENDS}{rest.partition(_ENDS)[2]}"


if __name__ == "__main__":
    replace_file(PATH, [text().encode()])
