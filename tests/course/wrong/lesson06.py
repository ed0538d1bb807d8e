"""Wrong solutions of lesson 6."""

from tests.course.wrong import Wrong


def _names(module):
    return {id(param): name for name, param in module.named_parameters()}


def reversed_registration(module, loss):
    """What is registered last is used last, in most models."""
    loss.backward()
    return [name for name, param in reversed(list(module.named_parameters())) if param.grad is not None]


def of_all_parameters(module, loss):
    """Those that backward did not reach come at the end."""
    names, order = _names(module), []
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]) if id(leaf) in names else None)
    return order + [name for name in names.values() if name not in order]


def every_leaf(module, loss):
    """An input is a leaf too."""
    names, order = _names(module), []
    loss.backward(on_leaf=lambda leaf: order.append(names.get(id(leaf), "?")))
    return order


def hooks_that_stay(module, loss):
    """The hooks are never removed."""
    order = []
    for name, param in module.named_parameters():
        param.register_post_accumulate_grad_hook(lambda param, name=name: order.append(name))
    loss.backward()
    return order


def all_names(module, loss):
    """A shared parameter goes by its last name."""
    names = {id(param): name for name, param in module.named_parameters(remove_duplicate=False)}
    order = []
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]) if id(leaf) in names else None)
    return order


def twice(module, loss):
    """One backward to look, one more for the gradients."""
    names, order = _names(module), []
    loss.backward(retain_graph=True)
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]) if id(leaf) in names else None)
    return order


def of_this_backward_alone(module, loss):
    """What the gradients were before is lost."""
    names, order = _names(module), []
    module.zero_grad()
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]) if id(leaf) in names else None)
    return order


def by_bytes(module, loss, clock):
    """The clock is not read: the bytes of the gradients tell, on the clock of a simulation."""
    names, done, order = {id(param): name for name, param in module.named_parameters()}, 0, {}
    sizes = {name: param.data.nbytes for name, param in module.named_parameters()}
    reached = []
    loss.backward(on_leaf=lambda leaf: reached.append(names[id(leaf)]))
    for name in reached:
        done += sizes[name]
        order[name] = done
    return {name: each / done for name, each in order.items()}


def counted(module, loss, clock):
    """The k-th of n gradients is taken for k/n."""
    names, order = _names(module), []
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]) if id(leaf) in names else None)
    return {name: (i + 1) / len(order) for i, name in enumerate(order)}


def _times(module, loss, clock):
    names, times, began_s = _names(module), {}, clock.now_s()
    loss.backward(on_leaf=lambda leaf: times.update({names[id(leaf)]: clock.now_s()}))
    return times, began_s, clock.now_s()


def since_zero(module, loss, clock):
    """The clock is taken to be at 0 when backward begins."""
    times, _, ended_s = _times(module, loss, clock)
    return {name: moment_s / ended_s for name, moment_s in times.items()}


def what_is_left(module, loss, clock):
    """The other way round."""
    times, began_s, ended_s = _times(module, loss, clock)
    return {name: (ended_s - moment_s) / (ended_s - began_s) for name, moment_s in times.items()}


def seconds(module, loss, clock):
    """Seconds, no fraction."""
    times, began_s, _ = _times(module, loss, clock)
    return {name: moment_s - began_s for name, moment_s in times.items()}


def after_all(module, loss, clock):
    """The clock is read when backward has returned."""
    names, order = _names(module), []
    loss.backward(on_leaf=lambda leaf: order.append(names[id(leaf)]))
    return {name: 1.0 for name in order}


WRONG = {
    "ready_order": [
        Wrong(reversed_registration, "follows the order of registration"),
        Wrong(of_all_parameters, "only what backward reached should come"),
        Wrong(every_leaf, "an input is no parameter"),
        Wrong(hooks_that_stay, "a hook that you registered is still there"),
        Wrong(all_names, "a shared parameter goes by its first name"),
        Wrong(of_this_backward_alone, "a second time, which adds to the first"),
        Wrong(twice, "run backward once"),
    ],
    "ready_fractions": [
        Wrong(counted, "that counts gradients"),
        Wrong(by_bytes, "read the clock that you are given"),
        Wrong(since_zero, "the clock has run before backward began"),
        Wrong(what_is_left, "that is what is left of backward"),
        Wrong(seconds, "divide by what the whole backward takes"),
        Wrong(after_all, "read the clock in on_leaf"),
    ],
}
