"""A course on data-parallel training: lessons with tasks and checks, graded on a virtual cluster, without a GPU.

Nothing imports it. `python -m minigrad.course` runs it; `README.md` here says how, `SYLLABUS.md` what a teacher needs.
"""
