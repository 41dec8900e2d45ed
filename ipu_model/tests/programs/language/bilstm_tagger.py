"""Part-of-speech tagging with LSTMs in both directions; padding is ignored by the loss, executors take turns."""

import torch
from program_kit import Items, train
from torch import nn

import poptorch

TAGS, WORDS, LENGTH, IGNORED = 4, 20, 8, -100


def sentence(index, generator):
    """The tag of a word depends on it and on the word before."""
    tokens = torch.randint(1, WORDS, (LENGTH,), generator=generator)
    labels = (tokens + tokens.roll(1)) % TAGS
    padding = torch.arange(LENGTH) >= torch.randint(3, LENGTH + 1, (), generator=generator)
    return {"tokens": tokens.masked_fill(padding, 0), "labels": labels.masked_fill(padding, IGNORED), "length": LENGTH}


class BiLSTMTagger(nn.Module):
    def __init__(self, hidden=32):
        super().__init__()
        self.emb = nn.Embedding(WORDS, hidden, padding_idx=0)
        self.forward_lstm, self.backward_lstm = nn.LSTM(hidden, hidden), nn.LSTM(hidden, hidden)
        self.bi = nn.LSTM(2 * hidden, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, TAGS)

    def forward(self, tokens, labels=None, length=None):
        x = self.emb(tokens).transpose(0, 1)
        ahead, back = self.forward_lstm(x)[0], self.backward_lstm(torch.flip(x, dims=[0]))[0]
        x = torch.cat([ahead, torch.flip(back, dims=[0])], dim=-1).transpose(0, 1)
        scores = self.out(self.bi(x)[0])
        predictions = scores.argmax(-1).int()
        if labels is None:
            return predictions
        loss = nn.functional.cross_entropy(scores.permute(0, 2, 1), labels, ignore_index=IGNORED)
        return predictions, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(3)
train_opts, eval_opts = poptorch.Options().deviceIterations(4), poptorch.Options().deviceIterations(2)
train_opts.outputMode(poptorch.OutputMode.All)
known = poptorch.DataLoader(train_opts, Items(320, sentence), batch_size=8, shuffle=True, drop_last=True)
unknown = poptorch.DataLoader(eval_opts, Items(64, sentence, seed=1000), batch_size=8)
model = BiLSTMTagger()
training = poptorch.trainingModel(model, train_opts, poptorch.optim.AdamW(model.parameters(), lr=1e-2))
inference, best = poptorch.inferenceModel(model, options=eval_opts), 0.0
for _ in range(6):
    model.train()
    if inference.isAttachedToDevice():
        inference.detachFromDevice()
    train(training, known)
    training.detachFromDevice()
    model.eval()
    right = [(inference(batch["tokens"]) == batch["labels"])[batch["labels"] != IGNORED] for batch in unknown]
    best = max(best, torch.cat(right).float().mean().item())
assert best > 0.6, best
