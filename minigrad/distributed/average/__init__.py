"""Parameters combined every so often: when (policies), what then (outer optimizers), and a shell that does it."""
