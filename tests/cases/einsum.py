"""Cases for minigrad/ops/einsum.py."""

from minigrad import ops
from tests.cases.case import Case, normal

_SHAPES = {  # of the operands, by equation
    "ij->ji": ((2, 3),),
    "ij": ((2, 3),),
    "ba": ((2, 3),),
    "ij->": ((2, 3),),
    "ii": ((3, 3),),
    "ii->i": ((3, 3),),
    "iji->j": ((3, 2, 3),),
    "i,i": ((3,), (3,)),
    "i,j->ij": ((3,), (2,)),
    "ij,jk": ((2, 3), (3, 4)),
    "ij,kj->ik": ((2, 3), (4, 3)),
    "ij,ij->i": ((2, 3), (2, 3)),
    "bij,bjk->bik": ((2, 3, 4), (2, 4, 2)),
    "bhqd,bhkd->bhqk": ((2, 2, 3, 4), (2, 2, 5, 4)),
    "bn,anm,bm->ba": ((2, 3), (4, 3, 5), (2, 5)),
    "ij,jk,kl->il": ((2, 3), (3, 4), (4, 2)),
    "ij,k->i": ((2, 3), (4,)),
    "...ij->...ji": ((2, 3, 4),),
    "...ij,jk->...ik": ((2, 5, 3), (3, 4)),
    "b...,b...->...": ((2, 3, 4), (2, 3, 4)),
    "...i,...i": ((2, 3), (4, 1, 3)),
    "i...->i": ((2, 3, 4),),
    " ij , jk -> ki ": ((2, 3), (3, 4)),
    "Ab,bc->cA": ((2, 3), (3, 4)),
    "ij,j->i": ((2, 3), (1,)),
    ",i->i": ((), (3,)),
    "ij,jk->k": ((2, 0), (0, 3)),
}
_DOTS = {"two": ((2, 3, 4), (3, 4, 5), 2), "none": ((2,), (3,), 0), "axes": ((2, 3, 4), (4, 2, 5), ([2, 0], [0, 1])),
         "all": ((2, 3), (2, 3), 2), "crossed": ((2, 3, 4), (3, 5, 2), ([0, 1], [-1, 0]))}

CASES = [
    *(
        Case("einsum", equation.replace(" ", "_"), normal(*shapes), lambda *x, e=equation: ops.einsum(e, *x),
             lambda t, *x, e=equation: t.einsum(e, *x) * 1)
        for equation, shapes in _SHAPES.items()
    ),
    Case("einsum", "list", normal((2, 3), (3, 4)), lambda *x: ops.einsum("ij,jk", list(x)),
         lambda t, *x: t.einsum("ij,jk", list(x))),
    *(
        Case("tensordot", label, normal(*shapes), lambda x, y, d=dims: ops.tensordot(x, y, d),
             lambda t, x, y, d=dims: t.tensordot(x, y, d))
        for label, (*shapes, dims) in _DOTS.items()
    ),
]
