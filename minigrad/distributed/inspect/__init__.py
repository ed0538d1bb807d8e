"""What reads a record of a run: where the time of a step went, who was late, and why."""
