"""Ranks that are processes of one host, over memory that they share."""
