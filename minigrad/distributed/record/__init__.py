"""What a run leaves behind for whoever looks at it later: fingerprints of its replicas."""
