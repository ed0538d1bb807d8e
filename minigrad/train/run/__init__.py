"""Runs: `Trainer.start` owns ranks, data and epochs. What it is told, where ranks live, what each of them does."""
