"""Train an LSTM language model on a small generated corpus and report its perplexity."""

import argparse
import math
import sys
import time

import torch
from torch import nn

import poptorch

SENTENCES = [
    "the cat sat on the mat and looked at the dog",
    "the dog sat on the log and looked at the cat",
    "a bird sang in the tree while the cat slept",
]


def get_args():
    parser = argparse.ArgumentParser(description="LSTM language model on IPU")
    parser.add_argument("--batch-size", type=int, default=4)
    parser.add_argument("--seq-len", type=int, default=12)
    parser.add_argument("--emb-size", type=int, default=32)
    parser.add_argument("--hidden-size", type=int, default=48)
    parser.add_argument("--num-layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--gradient-accumulation", type=int, default=2)
    parser.add_argument("--device-iterations", type=int, default=2)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--lr", type=float, default=0.01)
    parser.add_argument("--seed", type=int, default=1234)
    return parser.parse_args()


class Corpus:
    def __init__(self, sentences, repeats):
        words = (" <eos> ".join(sentences) + " <eos>").split()
        self.vocab = {word: index for index, word in enumerate(sorted(set(words)))}
        self.tokens = torch.tensor([self.vocab[word] for word in words] * repeats, dtype=torch.long)

    def __len__(self):
        return len(self.vocab)


class WindowDataset(torch.utils.data.Dataset):
    """Overlapping windows: the target is the input, one word later."""

    def __init__(self, tokens, seq_len):
        self.tokens = tokens
        self.seq_len = seq_len

    def __len__(self):
        return len(self.tokens) - self.seq_len - 1

    def __getitem__(self, index):
        window = self.tokens[index : index + self.seq_len + 1]
        return window[:-1], window[1:]


class LSTMLanguageModel(nn.Module):
    def __init__(self, vocab_size, emb_size, hidden_size, num_layers, dropout):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, emb_size)
        self.rnn = nn.LSTM(emb_size, hidden_size, num_layers=num_layers, batch_first=True)
        self.dropout = nn.Dropout(dropout)
        self.decoder = nn.Linear(hidden_size, vocab_size)
        self.criterion = nn.CrossEntropyLoss()
        self.init_weights()

    def init_weights(self):
        nn.init.uniform_(self.embedding.weight, -0.1, 0.1)
        nn.init.zeros_(self.decoder.bias)

    def forward(self, tokens, targets=None):
        embedded = self.dropout(self.embedding(tokens))
        output, (hidden, cell) = self.rnn(embedded)
        logits = self.decoder(self.dropout(output))
        if targets is None:
            return logits, hidden, cell
        loss = self.criterion(logits.view(-1, logits.size(-1)), targets.reshape(-1))
        return logits.argmax(dim=-1), loss


def main():
    args = get_args()
    torch.manual_seed(args.seed)
    corpus = Corpus(SENTENCES, repeats=4)

    opts = poptorch.Options()
    opts.deviceIterations(args.device_iterations)
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.randomSeed(args.seed)
    opts.outputMode(poptorch.OutputMode.Sum)

    dataset = WindowDataset(corpus.tokens, args.seq_len)
    loader = poptorch.DataLoader(opts, dataset, batch_size=args.batch_size, shuffle=True, drop_last=True)

    model = LSTMLanguageModel(len(corpus), args.emb_size, args.hidden_size, args.num_layers, args.dropout)
    optimizer = poptorch.optim.Adam(model.parameters(), lr=args.lr)
    train = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, step_size=2, gamma=0.7)

    micro_batches = args.device_iterations * args.gradient_accumulation
    perplexities = []
    for epoch in range(args.epochs):
        start = time.perf_counter()
        total = 0.0
        for tokens, targets in loader:
            _, loss = train(tokens, targets)
            total += loss.item() / micro_batches
        scheduler.step()
        train.setOptimizer(optimizer)
        perplexities.append(math.exp(total / len(loader)))
        print(f"epoch {epoch}: perplexity {perplexities[-1]:.2f} ({time.perf_counter() - start:.1f} s)")
    train.detachFromDevice()

    model.eval()
    infer = poptorch.inferenceModel(model, poptorch.Options())
    sample = dataset[0][0].unsqueeze(0)
    logits, hidden, cell = infer(sample)
    with torch.no_grad():
        expected, expected_hidden, expected_cell = LSTMLanguageModel.forward(model, sample)
    if not torch.allclose(logits, expected, atol=1e-4):
        sys.exit("IPU and CPU disagree about the logits")
    if hidden.shape != (args.num_layers, 1, args.hidden_size) or not torch.allclose(cell, expected_cell, atol=1e-4):
        sys.exit("wrong final states")
    if perplexities[-1] > 0.5 * perplexities[0]:
        sys.exit("perplexity did not fall")


if __name__ == "__main__":
    main()
