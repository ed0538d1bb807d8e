"""What nn.utils has beside clip_grad_norm_ and clip_grad_value_: parameters as a vector, norms taken apart."""

import numpy as np
import pytest

from minigrad import Tensor, nn, ones, optim
from minigrad.errors import ArgumentError, DtypeError, NonFiniteError, ShapeError
from minigrad.nn import utils
from minigrad.nn.utils.rnn import pad_sequence
from tests.unit.optim.models import draw_gradients, draw_parameters, same, values


def test_clipping_is_that_of_optim():
    assert utils.clip_grad_norm_ is optim.clip_grad_norm_ and utils.clip_grad_value_ is optim.clip_grad_value_


def test_a_choice_of_implementation_is_taken(rng):
    params = draw_parameters(rng)
    draw_gradients(rng, params)
    utils.clip_grad_norm_(params, max_norm=0.5, foreach=True)
    with pytest.raises(ArgumentError, match="clip_grad_norm_: expected no foreach, got 3: all gradients are taken as"):
        utils.clip_grad_norm_(params, 0.5, foreach=3)


@pytest.mark.parametrize("p", [1.0, 2.0, float("inf")])
def test_measuring_then_clipping_is_clip_grad_norm_(rng, p):
    params, twins = draw_parameters(rng), draw_parameters(rng)
    draw_gradients(rng, params)
    for param, twin in zip(params, twins):
        twin.grad = param.grad
    params[1].grad = twins[1].grad = None
    norm = utils.clip_grad_norm_(params, 0.5, p)
    total = utils.get_total_norm([twin.grad for twin in twins if twin.grad is not None], p)
    assert abs(norm.item() - total.item()) <= 1e-15 * norm.item()
    utils.clip_grads_with_norm_(twins, 0.5, norm)
    kept = [[param.grad for param in each if param.grad is not None] for each in (params, twins)]
    assert same(*map(values, kept))


def test_parameters_go_to_a_vector_and_back(rng):
    params = draw_parameters(rng)
    optimizer = optim.SGD(params)  # so they lie in a flat layout, and have to stay there
    vector = utils.parameters_to_vector(params)
    assert np.array_equal(vector.detach().numpy(), np.concatenate([value.ravel() for value in values(params)]))
    (vector * 3.0).sum().backward()
    assert all((param.grad.numpy() == 3.0).all() for param in params)
    utils.vector_to_parameters(vector.detach() * 2.0, params)
    assert np.array_equal(utils.parameters_to_vector(params).detach().numpy(), 2 * vector.detach().numpy())
    optimizer.step()


def test_sequences_are_filled_up():
    short, long = Tensor(np.array([[1.0, 2.0]], np.float32), requires_grad=True), ones(3, 2)
    batch = pad_sequence([short, long], batch_first=True, padding_value=7.0)
    assert batch.shape == (2, 3, 2) and batch[0].tolist() == [[1, 2], [7, 7], [7, 7]]
    batch.sum().backward()
    assert short.grad.tolist() == [[1.0, 1.0]]
    turned = pad_sequence([short, long], padding_side="left")
    assert turned.shape == (3, 2, 2) and turned[:, 0].tolist() == [[0, 0], [0, 0], [1, 2]]
    assert pad_sequence([Tensor(np.arange(2)), Tensor(np.arange(1))], True).tolist() == [[0, 1], [0, 0]]


REFUSED = [
    (lambda params: utils.parameters_to_vector([]), ArgumentError, "expected at least one parameter, got none"),
    (lambda params: utils.parameters_to_vector([1]), DtypeError, "parameters_to_vector: expected tensors, got int"),
    (lambda params: utils.vector_to_parameters(ones(3), params), ShapeError, r"of 27 elements, got shape \(3,\)"),
    (lambda params: utils.vector_to_parameters(ones(27), params), DtypeError, "of float64, got float32"),
    (lambda params: utils.vector_to_parameters(3, params), DtypeError, "expected a tensor, got int"),
    (lambda params: utils.get_total_norm(params, 0), ArgumentError, "get_total_norm: expected norm_type"),
    (lambda params: utils.get_total_norm([3]), DtypeError, "get_total_norm: expected float tensors, got int"),
    (lambda params: utils.get_total_norm([Tensor(np.array(np.nan))], 2.0, True), NonFiniteError, "finite norm .* nan"),
    (lambda params: utils.clip_grads_with_norm_(params, 1.0, 2.0), DtypeError, "expected float tensors, got float"),
    (lambda params: utils.clip_grads_with_norm_(params, 1.0, params[0]), ArgumentError, "total_norm of one element"),
    (lambda params: nn.utils.weight_norm, AttributeError, "got 'weight_norm': write a Module that computes its weight"),
    (lambda params: nn.utils.rnn.pack_padded, AttributeError, "got 'pack_padded'"),
    (lambda params: pad_sequence([]), ArgumentError, "pad_sequence: expected at least one sequence, got none"),
    (lambda params: pad_sequence(ones(2)), ArgumentError, "expected sequences to be a list or a tuple"),
    (lambda params: pad_sequence([1]), DtypeError, "pad_sequence: expected tensors, got int"),
    (lambda params: pad_sequence([ones(2, 1), ones(3)]), ShapeError, r"first axis alone, got \(2, 1\) and \(3,\)"),
    (lambda params: pad_sequence([ones(())]), ShapeError, r"got \(\) and \(\)"),
    (lambda params: pad_sequence([ones(2)], padding_side="top"), ArgumentError, "one of 'right', 'left', got 'top'"),
]


@pytest.mark.parametrize("call, error, message", REFUSED)
def test_what_is_refused(rng, call, error, message):
    with pytest.raises(error, match=message):
        call(draw_parameters(rng))
