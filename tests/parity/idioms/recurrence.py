"""Recurrent layers, cells and packed sequences in taggers, classifiers and language models."""

from tests.parity.idioms.idiom import read

IDIOMS = read(
    r"""
## an lstm called as in the documentation
rnn = fixed(nn.LSTM(3, 4, 2))
input = torch.arange(5 * 2 * 3.0).reshape(5, 2, 3).sin()
h0 = torch.zeros(2, 2, 4)
c0 = torch.ones(2, 2, 4)
output, (hn, cn) = rnn(input, (h0, c0))
output.sum().backward()
result = [output, hn, cn, rnn.weight_ih_l0.grad, rnn.bias_hh_l1.grad, list(rnn.state_dict())]

## an lstm step by step as in the tutorial
lstm = fixed(nn.LSTM(3, 3))
inputs = [torch.arange(3.0).reshape(1, 3) * (i + 1) for i in range(5)]
hidden = (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
for i in inputs:
    out, hidden = lstm(i.view(1, 1, -1), hidden)
inputs = torch.cat(inputs).view(len(inputs), 1, -1)
hidden2 = (torch.zeros(1, 1, 3), torch.zeros(1, 1, 3))
out2, hidden2 = lstm(inputs, hidden2)
result = [out, hidden, out2[-1], hidden2]

## a tagger of parts of speech
class LSTMTagger(nn.Module):
    def __init__(self, embedding_dim, hidden_dim, vocab_size, tagset_size):
        super(LSTMTagger, self).__init__()
        self.hidden_dim = hidden_dim
        self.word_embeddings = nn.Embedding(vocab_size, embedding_dim)
        self.lstm = nn.LSTM(embedding_dim, hidden_dim)
        self.hidden2tag = nn.Linear(hidden_dim, tagset_size)

    def forward(self, sentence):
        embeds = self.word_embeddings(sentence)
        lstm_out, _ = self.lstm(embeds.view(len(sentence), 1, -1))
        tag_space = self.hidden2tag(lstm_out.view(len(sentence), -1))
        return F.log_softmax(tag_space, dim=1)

model = fixed(LSTMTagger(6, 6, 9, 3))
loss_function = nn.NLLLoss()
optimizer = optim.SGD(model.parameters(), lr=0.1)
for epoch in range(3):
    for sentence, tags in [([0, 1, 2, 3, 4], [0, 1, 2, 0, 1]), ([5, 6, 7, 8], [1, 2, 0, 1])]:
        model.zero_grad()
        scores = model(torch.tensor(sentence, dtype=torch.long))
        loss = loss_function(scores, torch.tensor(tags))
        loss.backward()
        optimizer.step()
result = [loss, scores]

## a sentiment classifier with packed sequences
class Sentiment(nn.Module):
    def __init__(self, vocab, emb, hidden, layers, out, dropout, pad_idx=0):
        super().__init__()
        self.embedding = nn.Embedding(vocab, emb, padding_idx=pad_idx)
        self.rnn = nn.LSTM(emb, hidden, num_layers=layers, bidirectional=True, dropout=dropout, batch_first=True)
        self.fc = nn.Linear(hidden * 2, out)
        self.dropout = nn.Dropout(dropout)

    def forward(self, text, lengths):
        embedded = self.dropout(self.embedding(text))
        packed = nn.utils.rnn.pack_padded_sequence(embedded, lengths.cpu(), batch_first=True, enforce_sorted=False)
        packed_output, (hidden, cell) = self.rnn(packed)
        output, output_lengths = nn.utils.rnn.pad_packed_sequence(packed_output, batch_first=True)
        hidden = self.dropout(torch.cat((hidden[-2, :, :], hidden[-1, :, :]), dim=1))
        return self.fc(hidden), output, output_lengths

model = fixed(Sentiment(10, 3, 4, 2, 1, 0.0))
text = torch.tensor([[1, 2, 3, 4], [5, 6, 0, 0], [7, 8, 9, 0]])
y, output, lengths = model(text, torch.tensor([4, 2, 3]))
loss = F.binary_cross_entropy_with_logits(y.squeeze(1), torch.tensor([1.0, 0.0, 1.0]))
loss.backward()
result = [y, output, lengths, model.embedding.weight.grad, model.rnn.weight_hh_l1_reverse.grad]

## packing in order of lengths
seqs = [torch.arange(n * 2.0).reshape(n, 2) for n in (3, 2, 1)]
padded = nn.utils.rnn.pad_sequence(seqs, batch_first=True)
packed = nn.utils.rnn.pack_padded_sequence(padded, [3, 2, 1], batch_first=True)
rnn = fixed(nn.GRU(2, 3, batch_first=True))
out, h = rnn(packed)
out, lens = nn.utils.rnn.pad_packed_sequence(out, batch_first=True)
result = [out, lens, h]

## the data of a packed sequence
pack_sequence = nn.utils.rnn.pack_sequence
packed = pack_sequence([torch.tensor([1, 2, 3]), torch.tensor([4, 5])])
result = [packed.data, packed.batch_sizes]

## packing of a list in any order
seqs = [torch.arange(n * 2.0).reshape(n, 2) for n in (1, 3, 2)]
packed = nn.utils.rnn.pack_sequence(seqs, enforce_sorted=False)
out, h = fixed(nn.RNN(2, 2))(packed)
padded, lens = nn.utils.rnn.pad_packed_sequence(out, padding_value=-1.0, total_length=4)
result = [padded, lens, h]

## truncated backpropagation with detach
def repackage_hidden(h):
    if isinstance(h, torch.Tensor):
        return h.detach()
    return tuple(repackage_hidden(v) for v in h)

rnn, out = fixed(nn.LSTM(2, 3)), fixed(nn.Linear(3, 1))
params = [*rnn.parameters(), *out.parameters()]
h = (torch.zeros(1, 2, 3), torch.zeros(1, 2, 3))
data = torch.arange(8 * 2 * 2.0).reshape(8, 2, 2).sin()
for i in range(0, 8, 4):
    h = repackage_hidden(h)
    for p in params:
        p.grad = None
    y, h = rnn(data[i : i + 4], h)
    loss = out(y).pow(2).mean()
    loss.backward()
    with torch.no_grad():
        for p in params:
            p -= 0.1 * p.grad
result = [loss, h, rnn.weight_hh_l0.grad]

## a detach in place of the hidden state
rnn = fixed(nn.GRU(2, 3))
h = None
for i in range(2):
    y, h = rnn(torch.ones(4, 1, 2) * i, h)
    y.sum().backward()
    h.detach_()
result = [h, rnn.weight_hh_l0.grad]

## an rnn with relu
rnn = fixed(nn.RNN(input_size=3, hidden_size=4, num_layers=1, nonlinearity="relu", bias=False, batch_first=True))
x = torch.arange(2 * 5 * 3.0).reshape(2, 5, 3).cos()
out, h = rnn(x)
result = [out, h, list(rnn.state_dict())]

## a bidirectional gru
gru = fixed(nn.GRU(3, 2, num_layers=2, batch_first=True, bidirectional=True))
x = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3).sin()
out, h = gru(x)
forward, backward = out[..., :2], out[..., 2:]
last = torch.cat([h[-2], h[-1]], dim=-1)
result = [out, h.view(2, 2, 2, 2), last, forward[:, -1], backward[:, 0]]

## an lstm of one sequence without a batch
lstm = fixed(nn.LSTM(3, 2))
out, (h, c) = lstm(torch.arange(12.0).reshape(4, 3).sin())
result = [out, h, c]

## an lstm with a projection
lstm = fixed(nn.LSTM(3, 4, proj_size=2))
out, (h, c) = lstm(torch.arange(12.0).reshape(4, 1, 3).sin())
result = [out, h, c]

## cells in a loop
cell1, cell2 = fixed(nn.LSTMCell(1, 4)), fixed(nn.LSTMCell(4, 4))
linear = fixed(nn.Linear(4, 1))
x = torch.arange(10.0).reshape(2, 5).sin()
h1, c1 = torch.zeros(2, 4), torch.zeros(2, 4)
h2, c2 = torch.zeros(2, 4), torch.zeros(2, 4)
outputs = []
for step in x.split(1, dim=1):
    h1, c1 = cell1(step, (h1, c1))
    h2, c2 = cell2(h1, (h2, c2))
    outputs += [linear(h2)]
for i in range(2):
    h1, c1 = cell1(outputs[-1], (h1, c1))
    h2, c2 = cell2(h1, (h2, c2))
    outputs += [linear(h2)]
y = torch.cat(outputs, dim=1)
F.mse_loss(y[:, :5], x).backward()
result = [y, cell1.weight_hh.grad, list(cell1.state_dict())]

## a gru cell and an rnn cell
gru, rnn = fixed(nn.GRUCell(3, 2)), fixed(nn.RNNCell(3, 2, nonlinearity="relu"))
x = torch.arange(6.0).reshape(2, 3).sin()
h = gru(x)
h = gru(x, h)
result = [h, rnn(x), rnn(x[0])]

## a bias of the forget gate of one
lstm = nn.LSTM(2, 3, 1)
for name, param in lstm.named_parameters():
    if "bias" in name:
        nn.init.constant_(param, 0.0)
        with torch.no_grad():
            n = param.size(0)
            param[n // 4 : n // 2].fill_(1.0)
    elif "weight_ih" in name:
        nn.init.ones_(param)
    elif "weight_hh" in name:
        nn.init.orthogonal_(param)
result = [lstm.bias_ih_l0, lstm.weight_ih_l0, lstm.weight_hh_l0.shape]

## flatten_parameters
lstm = fixed(nn.LSTM(2, 3))
lstm.flatten_parameters()
result = lstm(torch.ones(2, 1, 2))[0]

## the weights of an lstm by layer
lstm = nn.LSTM(2, 3, num_layers=2, bidirectional=True)
result = [[w.shape for w in ws] for ws in lstm.all_weights]

## an rnn from scratch
class RNN(nn.Module):
    def __init__(self, input_size, hidden_size, output_size):
        super(RNN, self).__init__()
        self.hidden_size = hidden_size
        self.i2h = nn.Linear(input_size + hidden_size, hidden_size)
        self.h2o = nn.Linear(hidden_size, output_size)
        self.softmax = nn.LogSoftmax(dim=1)

    def forward(self, input, hidden):
        combined = torch.cat((input, hidden), 1)
        hidden = torch.tanh(self.i2h(combined))
        return self.softmax(self.h2o(hidden)), hidden

    def initHidden(self):
        return torch.zeros(1, self.hidden_size)

rnn = fixed(RNN(3, 4, 2))
line = F.one_hot(torch.tensor([0, 2, 1]), 3).float().unsqueeze(1)
hidden = rnn.initHidden()
for i in range(line.size()[0]):
    output, hidden = rnn(line[i], hidden)
loss = nn.NLLLoss()(output, torch.tensor([1]))
loss.backward()
for p in rnn.parameters():
    with torch.no_grad():
        p.add_(p.grad, alpha=-0.005)
result = [output, list(rnn.parameters())]

## cnn features into an lstm
conv, lstm = fixed(nn.Conv2d(1, 2, 3, padding=1)), fixed(nn.LSTM(8, 4, batch_first=True))
video = torch.arange(2 * 3 * 16.0).reshape(2, 3, 1, 4, 4).sin()
b, t = video.shape[:2]
f = F.max_pool2d(F.relu(conv(video.flatten(0, 1))), 2).flatten(1).view(b, t, -1)
_, (h, _) = lstm(f)
h[-1].sum().backward()
result = [h, conv.weight.grad]

## mistake: a sequence of another width
lstm = nn.LSTM(3, 2)
result = lstm(torch.zeros(4, 1, 5))

## mistake: a hidden state of another batch
gru = nn.GRU(3, 2)
result = gru(torch.zeros(4, 2, 3), torch.zeros(1, 3, 2))

## mistake: lengths out of order
x = torch.zeros(2, 3, 1)
result = nn.utils.rnn.pack_padded_sequence(x, [1, 3], batch_first=True)
"""
)
