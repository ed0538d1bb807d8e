"""Ranks on GPUs, over NCCL: the communicator, and what the ranks tell each other beside NCCL."""
