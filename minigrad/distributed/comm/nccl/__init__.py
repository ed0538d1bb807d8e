"""Ranks on GPUs, over NCCL. NCCL moves the data and says little; the control channel is what ranks tell each other.

In the order in which to read it: `communicator` makes the calls, `calls` says which of NCCL's they are, `launches`
hands them to a stream and looks after them, `handle` holds NCCL's own object. Beside it `control` has one thread a
rank, which hears `messages` on the `star` of connections; what they tell is in `world` (who is there, what has
failed), `progress` (how far each is), `gatherings` (calls that wait for all), `partings` (ranks whose `trail` is
another) and `meetings` (where passes are compared).
"""
