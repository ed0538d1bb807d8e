"""What is refused, with which error, in which words: a row a refusal, a file of rows a room of the package.

A row is `(call, error, words)`: `call()` raises `error`, and the regular expression `words` is found in what it says.
tests/test_refusals.py tries all rows.
"""

from functools import partial


def each(head, *rows, who=""):
    """Rows that begin alike: `head` is `call`, `(call, error)` or `(call, error, words)`, a row what differs.

    A row is the arguments of `call`, then the error and the words, unless the head has them; one argument that is all
    of a row needs no tuple. `%s` in the words is the first argument; `who` comes before the words of each.
    """
    call, *rest = head if isinstance(head, tuple) else (head,)
    for row in rows:
        arguments = list(row) if isinstance(row, tuple) else [row]
        words = rest[1] if len(rest) > 1 else arguments.pop()
        error = rest[0] if rest else arguments.pop()
        yield partial(call, *arguments), error, who + words.replace("%s", str(arguments[0]))


def run(call):
    return call()
