"""The communicators: one protocol, and a file for each way in which ranks reach each other."""
