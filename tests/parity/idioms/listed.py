"""The idioms that do not run."""

# Refused by an error of ours: words of its message that say what to write instead.
REFUSED = {
    "a causal mask from the transformer": ["write TransformerEncoder, with mask="],
    "a gradient penalty": ["expected create_graph=False", "only first derivatives"],
    "a hessian vector product": ["expected create_graph=False", "only first derivatives"],
    "into memory": ["expected a path", "a file on disk is read and written"],
    "old names of tensor types": ["write minigrad.tensor(data, minigrad.float32)"],
    "unsqueeze_ and squeeze_ and t_": ["write x = x.unsqueeze(...)"],
    "apply by type and class name": ["give the tensor itself, not its .data"],
    "saving a whole model": ["save its state_dict()"],
    "batch norm over all ranks": ["write distributed.convert_sync_batchnorm(module)"],
    "a periodic model averager": ["ParameterAverager(model, comm, distributed.average.EveryK(period))"],
    "a post-local sgd optimizer": ["distributed.average.PostLocalSGD(switch, k)"],
    "a post-local sgd hook": ["average.PostLocalSGD(switch, k)) for post-local SGD"],
    "the join of several things": ["ddp.join(also=[optimizer])"],
    "a monitored barrier": ["write barrier(), which names the ranks that do not come"],
}

# Fail: `.data` is the array, so where it is used as a tensor the error is NumPy's. `x.detach()`, or x itself under
# no_grad, does it.
ON_DATA = {
    "a target network by soft updates",
    "apply an init",
    "bigrams of characters by one neuron each",
    "data of a tensor",
    "gradient descent by hand with data",
    "gradient norm of all parameters",
    "init through data",
    "init through fill_ of data",
}
