"""Tagging words with LSTMs in both directions; padding is ignored by the loss, two executors take turns."""

import torch
from program_kit import Items, train
from torch import nn

import poptorch

TAGS, WORDS, LENGTH, HIDDEN, IGNORED = 4, 20, 8, 32, -100


def sentence(index, generator):
    """The tag of a word depends on it and on the word before."""
    tokens = torch.randint(1, WORDS, (LENGTH,), generator=generator)
    labels = (tokens + tokens.roll(1)) % TAGS
    padding = torch.arange(LENGTH) >= torch.randint(3, LENGTH + 1, (), generator=generator)
    return {"tokens": tokens.masked_fill(padding, 0), "labels": labels.masked_fill(padding, IGNORED)}


class BiLSTMTagger(nn.Module):
    def __init__(self):
        super().__init__()
        self.emb, self.out = nn.Embedding(WORDS, HIDDEN, padding_idx=0), nn.Linear(2 * HIDDEN, TAGS)
        self.ahead, self.back = nn.LSTM(HIDDEN, HIDDEN), nn.LSTM(HIDDEN, HIDDEN)
        self.both = nn.LSTM(2 * HIDDEN, HIDDEN, bidirectional=True, batch_first=True)

    def forward(self, tokens, labels=None):
        x = self.emb(tokens).transpose(0, 1)
        x = torch.cat([self.ahead(x)[0], self.back(x.flip(0))[0].flip(0)], dim=-1).transpose(0, 1)
        scores = self.out(self.both(x)[0])
        predictions = scores.argmax(-1).int()
        if labels is None:
            return predictions
        loss = nn.functional.cross_entropy(scores.permute(0, 2, 1), labels, ignore_index=IGNORED)
        return predictions, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(3)
train_opts, eval_opts = poptorch.Options().deviceIterations(4), poptorch.Options().deviceIterations(2)
known = poptorch.DataLoader(train_opts, Items(320, sentence), batch_size=8, shuffle=True, drop_last=True)
unknown = poptorch.DataLoader(eval_opts, Items(64, sentence, seed=1000), batch_size=8)
model, best = BiLSTMTagger(), 0.0
training = poptorch.trainingModel(model, train_opts, poptorch.optim.AdamW(model.parameters(), lr=1e-2))
inference = poptorch.inferenceModel(model, options=eval_opts)
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
