"""One process that makes the step of all ranks once more, and names what differs."""
