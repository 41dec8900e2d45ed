"""Translate with torch.nn.Transformer: causal and padding masks, warm-up schedule, beam search on the host."""

import math

import torch
from program_kit import Items, check_learned, following, train
from torch import nn
from torch.nn.functional import pad

import poptorch

PAD, BOS, EOS, VOCAB, LENGTH, DIM = 0, 1, 2, 20, 8, 32


class Translator(nn.Module):
    def __init__(self):
        super().__init__()
        self.source, self.target = nn.Embedding(VOCAB, DIM, PAD), nn.Embedding(VOCAB, DIM, PAD)
        self.position = nn.Parameter(torch.randn(1, LENGTH + 1, DIM) * 0.1)
        self.transformer = nn.Transformer(
            DIM, 4, num_encoder_layers=1, num_decoder_layers=1, dim_feedforward=64, dropout=0.0, batch_first=True
        )
        self.generator = nn.Linear(DIM, VOCAB)
        self.criterion = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=0.1)

    def forward(self, source, target, labels=None):
        out = self.transformer(
            self.source(source) * math.sqrt(DIM) + self.position[:, : source.size(1)],
            self.target(target) * math.sqrt(DIM) + self.position[:, : target.size(1)],
            tgt_mask=self.transformer.generate_square_subsequent_mask(target.size(1)),
            src_key_padding_mask=source == PAD,
            tgt_key_padding_mask=target == PAD,
            memory_key_padding_mask=source == PAD,
        )
        logits = self.generator(out)
        if labels is None:
            return torch.log_softmax(logits, -1)
        return logits, self.criterion(logits.flatten(0, 1), labels.flatten())


def sentence(index, generator):
    """The "translation" of a word is the next word of the vocabulary; the order is reversed."""
    size = int(torch.randint(2, 5, (), generator=generator))
    words = torch.randint(3, VOCAB - 1, (size,), generator=generator)
    target = pad((words + 1).flip(0), (1, 1), value=BOS)
    target[-1] = EOS
    source, room = pad(words, (0, LENGTH - size), value=PAD), (0, LENGTH - size - 1)
    return source, pad(target[:-1], room, value=PAD), pad(target[1:], room, value=PAD)


def beam_search(executor, source, width=3):
    beams = [([BOS], 0.0)]
    for _ in range(LENGTH - 1):
        # The batch is always of the same size: missing beams are filled up.
        rows = [tokens for tokens, _ in beams] + [[BOS]] * (width - len(beams))
        scores = executor(source.expand(width, -1), torch.tensor([row + [PAD] * (LENGTH - len(row)) for row in rows]))
        candidates = [beam for beam in beams if beam[0][-1] == EOS]
        for (tokens, total), row in zip(beams, scores):
            if tokens[-1] != EOS:
                values, words = row[len(tokens) - 1].topk(width)
                candidates += [([*tokens, int(w)], total + float(v)) for v, w in zip(values, words)]
        beams = sorted(candidates, key=lambda beam: -beam[1])[:width]
    return beams[0][0][1:-1]


torch.manual_seed(0)
opts = poptorch.Options().deviceIterations(4).outputMode(poptorch.OutputMode.Final)
loader = poptorch.DataLoader(opts, Items(512, sentence), batch_size=16, shuffle=True)
model = Translator()
optimizer = poptorch.optim.Adam(model.parameters(), lr=1.0, betas=(0.9, 0.98), eps=1e-9)
noam = torch.optim.lr_scheduler.LambdaLR(
    optimizer, lambda step: 0.4 * DIM**-0.5 * min((step + 1) ** -0.5, (step + 1) * 20**-1.5)
)
training = poptorch.trainingModel(model, opts, optimizer)
check_learned(train(training, loader, epochs=7, after=following(noam, training)), 0.6)
training.destroy()
executor = poptorch.inferenceModel(model.eval())
for source, _, labels in (Items(6, sentence)[index] for index in range(6)):
    print(beam_search(executor, source.unsqueeze(0)), "for", [int(word) for word in labels if word not in (PAD, EOS)])
