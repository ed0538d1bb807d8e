"""What guards and reports of divergence refuse."""

import numpy as np

from minigrad.distributed import ElChe, SoloCommunicator
from minigrad.distributed.average import (
    Divergence,
    DivergenceExchange,
    GrowthGuard,
    GuardedCadence,
    LevelGuard,
    TrendGuard,
    Verdict,
    add_sums,
    add_sums_and_adopt,
    sums_of,
)
from minigrad.distributed.balance.divergence import no_sums
from minigrad.distributed.balance.guards import as_guard, ask, guard_from
from minigrad.errors import ArgumentError, DtypeError, ShapeError, StateDictError
from tests.refusals import each

NEAR = Divergence((0.1,), (1.0,), (0.0,))
GUARDED = GuardedCadence(ElChe.start(1), LevelGuard(0.5))

ROWS = [
    *each(
        (Divergence, ArgumentError),
        ((), (), (), "expected relative as a number of each rank"),
        ((0.1, 0.2), (1.0,), (0.0, 0.0), r"expected cosine as a number of each rank, as many as of relative, got"),
        ((0.1,), (1.0,), ("0",), "expected magnitude as a number of each rank"),
        (0.1, (1.0,), (0.0,), "expected relative as a sequence with a value for each rank, got 0.1"),
        ((0.1,), (1.0,), (0.0,), 0, "expected steps to be an integer >= 1, got 0"),
        who="Divergence: ",
    ),
    (lambda: Divergence.from_data({"relative": [0.1]}), ArgumentError, r"expected what to_data\(\) returned, got {"),
    *each(
        (lambda own, common: add_sums(no_sums(own), own, common), DtypeError, "add_sums: expected two arrays of one f"),
        (np.ones(2), np.ones(2, np.float32)),
        (np.ones(2, np.int64), np.ones(2, np.int64)),
    ),
    (lambda: add_sums(np.zeros(3), np.ones(2), np.ones(3)), ShapeError, r"add_sums: expected two arrays \(n,\) of one"),
    (lambda: add_sums_and_adopt(np.zeros(3), np.ones((2, 2)), np.ones((2, 2))), ShapeError, "add_sums_and_adopt: exp"),
    (lambda: sums_of([]), ArgumentError, "sums_of: expected at least one pair of arrays, got none"),
    (lambda: DivergenceExchange(SoloCommunicator()).read(), ArgumentError, r"expected start\(\) before read\(\)"),
    (lambda: DivergenceExchange(SoloCommunicator()).start(None, -1), ArgumentError, "steps to be an integer >= 0"),
    # guards
    *each(
        (Verdict, ArgumentError),
        ("grow", 1.0, "expected action to be one of 'stable', 'hold', 'nudge', got 'grow'"),
        ("nudge", 1.0, r"expected factor to be a number in \(0, 1\), got 1.0"),
        ("hold", 0.5, r"expected factor to be a number in \[1, 1\], got 0.5"),
        ("hold", 1.0, None, "expected reason as a text, got None"),
        who="Verdict: ",
    ),
    *each(
        (LevelGuard, ArgumentError),
        (-0.1, "expected threshold to be a finite number >= 0, got -0.1"),
        (0.1, 0, "expected patience to be an integer >= 1, got 0"),
        (0.1, 1, 1.0, r"expected factor to be a number in \(0, 1\), got 1.0"),
        who="LevelGuard: ",
    ),
    *each(
        (TrendGuard, ArgumentError),
        (float("nan"), "expected threshold to be a finite number >= 0, got nan"),
        (0.1, 1, "expected history to be an integer >= 2, got 1"),
        who="TrendGuard: ",
    ),
    *each(
        (GrowthGuard, ArgumentError),
        (0.1, 0.01, "expected nudge_above >= hold_above, got 0.01 and 0.1"),
        (0.1, 0.2, 0.0, r"expected factor to be a number in \(0, 1\), got 0.0"),
        (0.1, 0.2, 0.5, 1.0, r"expected smoothing to be a number in \[0, 1\), got 1.0"),
        (0.1, 0.2, 0.5, 0.9, 0, "expected times to be an integer >= 1, got 0"),
        who="GrowthGuard: ",
    ),
    *each(
        (lambda guard: as_guard("Rounds", guard), ArgumentError),
        (LevelGuard, r"Rounds: expected a guard, got the class LevelGuard: write LevelGuard\(...\)"),
        (0.5, r"Rounds: expected a guard \(state, divergence\) -> \(state, verdict\), got 0.5"),
        (lambda state: state, "Rounds: expected a guard .*, got <function"),
    ),
    *each(
        (lambda guard: guard(None, 0.1), ArgumentError),
        *((guard, "expected a Divergence, got float: give report.d") for guard in (LevelGuard(0.5), TrendGuard())),
        (GrowthGuard(), "expected a Divergence"),
    ),
    (lambda: DivergenceExchange(3), ArgumentError, "DivergenceExchange: expected a communicator, got int"),
    (lambda: ask(lambda state, divergence: "hold", None, NEAR), ArgumentError, r"expected \(state, verdict\)"),
    (lambda: guard_from({"name": "mine"}), ArgumentError, "guard: expected the guard {'name': 'mine'}, got none"),
    (lambda: guard_from({"name": "mine"}, LevelGuard(0.5)), ArgumentError, "expected the guard .*, got {'name'"),
    # under a cadence
    (lambda: GuardedCadence.from_state_dict({}), StateDictError, "GuardedCadence: expected what its state_dict"),
    (
        lambda: GUARDED.resumed("Rounds", GuardedCadence(ElChe.start(1), LevelGuard(0.6)).state_dict()),
        StateDictError,
        "Rounds: expected the state of guard .*0.5, .* got that of .*0.6",
    ),
    (
        lambda: GUARDED.resumed("Rounds", GuardedCadence(ElChe.start(2), LevelGuard(0.5)).state_dict()),
        StateDictError,
        "Rounds: expected the state of 1 ranks, got that of 2",
    ),
]
