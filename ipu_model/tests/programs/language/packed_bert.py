"""Packed sequences: several short texts share a row, and a block-diagonal mask keeps them apart."""

from typing import List

import torch
from program_kit import Items, train
from torch import nn

import poptorch

LENGTH, PER_PACK, VOCAB, HIDDEN, HEADS, IGNORED = 24, 3, 50, 32, 2, -100
NAMES = ("input_ids", "attention_mask", "position_ids", "cls_positions", "labels")


def pack(lengths: List[int]) -> List[List[int]]:
    """Put the longest sequences first, each into the first pack that has room."""
    packs = []
    for index in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for members in packs:
            if len(members) < PER_PACK and sum(lengths[i] for i in [*members, index]) <= LENGTH:
                members.append(index)
                break
        else:
            packs.append([index])
    return packs


def packed(members):
    ids, mask, position = torch.zeros(3, LENGTH, dtype=torch.int32)
    starts, labels = torch.zeros(PER_PACK, dtype=torch.int32), torch.full((PER_PACK,), IGNORED, dtype=torch.int32)
    offset = 0
    for number, member in enumerate(members):
        end = offset + len(SEQUENCES[member])
        ids[offset:end], mask[offset:end], position[offset:end] = (
            SEQUENCES[member],
            number + 1,
            torch.arange(end - offset),
        )
        starts[number], labels[number] = offset, LABELS[member]
        offset = end
    return dict(zip(NAMES, (ids, mask, position, starts, labels)))


def text(index):
    draw = torch.Generator().manual_seed(index)
    sequence = torch.randint(4, VOCAB, (5 + index % 9,), dtype=torch.int32, generator=draw)
    sequence[0], sequence[1 + len(sequence) // 3] = 1, 2 + LABELS[index]
    return sequence


LABELS = torch.randint(0, 2, (160,), generator=torch.Generator().manual_seed(5))
SEQUENCES = [text(index) for index in range(160)]
PACKS = pack([len(s) for s in SEQUENCES])


def item(index, generator):
    return packed(PACKS[index])


class PackedBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position = nn.Embedding(VOCAB, HIDDEN), nn.Embedding(LENGTH, HIDDEN)
        layers = (nn.TransformerEncoderLayer(HIDDEN, HEADS, 64, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers, self.classifier = nn.ModuleList(layers), nn.Linear(HIDDEN, 2)

    def forward(self, input_ids, attention_mask, position_ids, cls_positions, labels=None):
        x = self.word(input_ids) + self.position(position_ids)
        same = attention_mask[:, None, :] == attention_mask[:, :, None]
        bias = ((1.0 - same.float()) * -1e4).repeat_interleave(HEADS, dim=0)
        for layer in self.layers:
            x = layer(x, src_mask=bias)
        logits = self.classifier(torch.gather(x, 1, cls_positions.long().unsqueeze(-1).expand(-1, -1, HIDDEN)))
        if labels is None:
            return logits
        flat = labels.view(-1).long()
        losses = nn.functional.cross_entropy(logits.view(-1, 2), flat, ignore_index=IGNORED, reduction="none")
        valid = (flat != IGNORED).float()
        return logits, poptorch.identity_loss((losses * valid).sum() / valid.sum(), reduction="mean")


def main():
    torch.manual_seed(5)
    assert len(PACKS) < len(SEQUENCES)
    opts = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(2)
    mode = poptorch.DataLoaderMode.AsyncRebatched
    loader = poptorch.DataLoader(opts, Items(len(PACKS), item), batch_size=4, shuffle=True, mode=mode, drop_last=True)
    model = PackedBert().train()
    training = poptorch.trainingModel(model, opts, poptorch.optim.AdamW(model.parameters(), lr=3e-3))
    epochs = [sum(train(training, loader)) for _ in range(12)]
    loader.terminate()
    training.destroy()
    assert epochs[-1] < 0.5 * epochs[0]

    # A sequence alone gives what it gives in company.
    inference = poptorch.inferenceModel(model.eval())
    samples = ({name: value[None] for name, value in packed(members).items()} for members in (PACKS[0], PACKS[0][:1]))
    together, alone = (inference(**{name: sample[name] for name in NAMES[:-1]}) for sample in samples)
    assert torch.allclose(alone[0, 0], together[0, 0], atol=1e-4)


if __name__ == "__main__":
    main()
