"""Part-of-speech tagging with a bidirectional LSTM; padding is ignored by the loss."""

import logging
import random

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
logger = logging.getLogger("tagger")

PAD, UNK = 0, 1
IGNORE = -100
TAGS = ["DET", "NOUN", "VERB", "ADJ"]
LEXICON = {
    "DET": ["the", "a", "this"],
    "NOUN": ["dog", "cat", "house", "river"],
    "VERB": ["sees", "likes", "eats"],
    "ADJ": ["big", "old", "green"],
}
PATTERNS = [
    ["DET", "NOUN", "VERB", "DET", "NOUN"],
    ["DET", "ADJ", "NOUN", "VERB", "DET", "ADJ", "NOUN"],
    ["NOUN", "VERB", "NOUN"],
]
MAX_LEN = 8
word_to_id = {"<pad>": PAD, "<unk>": UNK}
for words in LEXICON.values():
    for w in words:
        word_to_id.setdefault(w, len(word_to_id))


def make_sentence(rng):
    tags = rng.choice(PATTERNS)
    return [rng.choice(LEXICON[tag]) for tag in tags], tags


class TaggingDataset(torch.utils.data.Dataset):
    def __init__(self, size, seed):
        rng = random.Random(seed)
        self.examples = [make_sentence(rng) for _ in range(size)]

    def __len__(self):
        return len(self.examples)

    def __getitem__(self, idx):
        sentence, tags = self.examples[idx]
        tokens = np.full(MAX_LEN, PAD, dtype=np.int64)
        labels = np.full(MAX_LEN, IGNORE, dtype=np.int64)
        tokens[: len(sentence)] = [word_to_id.get(w, UNK) for w in sentence]
        labels[: len(tags)] = [TAGS.index(t) for t in tags]
        return {"tokens": tokens, "labels": labels, "length": len(sentence)}


class BiLSTMTagger(nn.Module):
    def __init__(self, vocab, tags, emb=16, hidden=16):
        super().__init__()
        self.emb = nn.Embedding(vocab, emb, padding_idx=PAD)
        self.forward_lstm = nn.LSTM(emb, hidden)
        self.backward_lstm = nn.LSTM(emb, hidden)
        self.bi = nn.LSTM(2 * hidden, hidden, bidirectional=True, batch_first=True)
        self.out = nn.Linear(2 * hidden, tags)

    def forward(self, tokens, labels=None):
        x = self.emb(tokens).transpose(0, 1)
        ahead, _ = self.forward_lstm(x)
        back, _ = self.backward_lstm(torch.flip(x, dims=[0]))
        x = torch.cat([ahead, torch.flip(back, dims=[0])], dim=-1).transpose(0, 1)
        x, _ = self.bi(x)
        scores = self.out(x)
        predictions = scores.argmax(-1).int()
        if labels is None:
            return predictions
        loss = F.cross_entropy(scores.permute(0, 2, 1), labels, ignore_index=IGNORE)
        return predictions, poptorch.identity_loss(loss, reduction="none")


def accuracy(predictions, labels):
    mask = labels != IGNORE
    return (predictions[mask] == labels[mask]).float().mean().item()


def main():
    torch.manual_seed(3)
    train_opts = poptorch.Options().deviceIterations(4)
    train_opts.outputMode(poptorch.OutputMode.All)
    eval_opts = poptorch.Options().deviceIterations(2)

    train_data = poptorch.DataLoader(
        train_opts, TaggingDataset(192, 0), batch_size=8, shuffle=True, num_workers=0, drop_last=True
    )
    eval_data = poptorch.DataLoader(eval_opts, TaggingDataset(64, 1), batch_size=8)

    model = BiLSTMTagger(len(word_to_id), len(TAGS))
    training = poptorch.trainingModel(
        model, options=train_opts, optimizer=poptorch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=1e-4)
    )
    inference = poptorch.inferenceModel(model, options=eval_opts)

    best = 0.0
    for epoch in range(4):
        model.train()
        if inference.isAttachedToDevice():
            inference.detachFromDevice()
        losses = []
        for batch in train_data:
            predictions, loss = training(batch["tokens"], batch["labels"])
            assert predictions.shape == batch["labels"].shape
            losses.append(loss.mean().item())
        training.detachFromDevice()

        model.eval()
        scores = [accuracy(inference(batch["tokens"]), batch["labels"]) for batch in eval_data]
        score = sum(scores) / len(scores)
        best = max(best, score)
        logger.info("epoch %d loss %.3f validation accuracy %.3f", epoch, np.mean(losses), score)

    assert best > 0.95, f"best accuracy only {best}"


if __name__ == "__main__":
    main()
