"""The rules of Chrome's trace events, as "Trace Event Format" (Google, 2016) has them, written anew."""

from collections import defaultdict

import numpy as np

NEEDED = {"X": ("name", "ts", "dur", "pid", "tid"), "M": ("name", "pid", "args")}
NEEDED |= {"i": ("name", "ts", "pid", "tid", "s")}
NEEDED |= {"s": ("name", "cat", "id", "ts", "pid", "tid"), "f": ("name", "cat", "id", "ts", "pid", "tid")}
METADATA = {"process_name": "name", "process_sort_index": "sort_index", "thread_name": "name"}
METADATA["thread_sort_index"] = "sort_index"
SLACK_US = 1e-3  # times are rounded to less


def broken_rules(trace):
    """What of a trace, a JSON object, breaks a rule, in words."""
    found = []
    events = trace["traceEvents"]
    for number, event in enumerate(events):
        missing = [key for key in NEEDED.get(event.get("ph"), ("a known ph",)) if key not in event]
        times = [event[key] for key in ("ts", "dur") if key in event]
        if missing:
            found.append(f"event {number} lacks {missing}")
        if not all(type(time) in (int, float) and np.isfinite(time) and time >= 0 for time in times):
            found.append(f"event {number} has times {times}")
        if not all(type(event.get(key, 0)) is int for key in ("pid", "tid")):
            found.append(f"event {number} has a pid or tid that is no integer")
        if event.get("ph") == "M" and METADATA[event["name"]] not in event["args"]:
            found.append(f"metadata {number} says nothing")
    return found or crossing(events) + loose_arrows(events)


def crossing(events):
    """Slices of one thread that overlap, neither within the other: no viewer can draw them."""
    rows, found = defaultdict(list), []
    for event in events:
        if event["ph"] == "X":
            rows[event["pid"], event["tid"]].append((event["ts"], event["ts"] + event["dur"], event["name"]))
    for row, slices in rows.items():
        open_until = []
        for begin, end, name in sorted(slices, key=lambda each: (each[0], -each[1])):
            while open_until and open_until[-1] <= begin + SLACK_US:
                open_until.pop()
            if open_until and end > open_until[-1] + SLACK_US:
                found.append(f"{name!r} at {begin} crosses another one on {row}")
            open_until.append(end)
    return found


def loose_arrows(events):
    """Flows that do not begin once and end once, later, each within a slice of its thread."""
    ends, found, rows = defaultdict(list), [], defaultdict(list)
    for one in events:
        if one["ph"] == "X":
            rows[one["pid"], one["tid"]].append((one["ts"] - SLACK_US, one["ts"] + one["dur"] + SLACK_US))
    rows = {row: np.array(slices) for row, slices in rows.items()}
    for event in events:
        if event["ph"] in "sf":
            ends[event["id"], event["cat"], event["name"]].append(event)
            slices = rows.get((event["pid"], event["tid"]), np.empty((0, 2)))
            if not ((slices[:, 0] <= event["ts"]) & (event["ts"] <= slices[:, 1])).any():
                found.append(f"arrow {event['id']} hangs in the air at its {event['ph']}")
    for key, pair in ends.items():
        if [event["ph"] for event in pair] != ["s", "f"] or pair[0]["ts"] > pair[1]["ts"]:
            found.append(f"arrow {key} does not go from one moment to a later one")
    return found
