"""A way between ranks that outlives a rank's death: letters, who died and of what, a communicator of the living.

`lifeline` is what one rank holds of it, and `assembly` how the living begin a communicator anew. Ranks that are threads
meet in an `office`.
"""
