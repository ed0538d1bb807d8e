"""Several devices that one thread drives: replicas of a model there, and how these reach each other."""
