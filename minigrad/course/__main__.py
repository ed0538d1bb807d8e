"""`python -m minigrad.course`."""

import sys

from minigrad.course.commands import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
