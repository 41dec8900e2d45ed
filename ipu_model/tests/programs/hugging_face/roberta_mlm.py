# needs: transformers
"""RoBERTa pretraining with dynamic masking in the collate function, pipelined, validated by perplexity."""

import math
from functools import partial

import torch
from transformers import RobertaConfig, RobertaForMaskedLM

import poptorch

MASK, LOW = 4, 5


def mask_tokens(batch, probability, generator):
    ids = torch.stack(batch)
    labels = ids.clone()
    chosen = torch.bernoulli(torch.full(ids.shape, probability), generator=generator).bool()
    chosen[:, 0] = False
    labels[~chosen] = -100
    ids = torch.where(chosen, torch.full_like(ids, MASK), ids)
    return ids, torch.ones_like(ids), labels


class Periodic(torch.utils.data.Dataset):
    def __init__(self, n, vocab, length=16):
        self.n, self.vocab, self.length = n, vocab, length

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return (torch.arange(self.length) + i) % 5 + LOW + 5 * (i % 2)


class Pipelined(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        self.roberta = RobertaForMaskedLM(config)

    def parallelize(self):
        layers = self.roberta.roberta.encoder.layer
        layers[1] = poptorch.BeginBlock(layers[1], "Encoder1", ipu_id=1)
        for layer in layers:
            layer.register_forward_hook(self.checkpoint)
        return self

    @staticmethod
    def checkpoint(module, inputs, output):
        if isinstance(output, tuple):
            return tuple(poptorch.recomputationCheckpoint(o) for o in output)
        return poptorch.recomputationCheckpoint(output)

    def forward(self, input_ids, attention_mask, labels):
        output = self.roberta(input_ids=input_ids, attention_mask=attention_mask)
        loss = torch.nn.functional.cross_entropy(output.logits.flatten(0, 1), labels.flatten(), ignore_index=-100)
        return poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
generator = torch.Generator().manual_seed(0)
config = RobertaConfig(
    vocab_size=20, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64,
    max_position_embeddings=24, hidden_dropout_prob=0.1, attention_probs_dropout_prob=0.0, pad_token_id=1,
    attn_implementation="eager",
)  # fmt: skip
model = Pipelined(config).parallelize()
opts = poptorch.Options()
opts.Training.gradientAccumulation(4)
opts.randomSeed(1)
collate = partial(mask_tokens, probability=0.2, generator=generator)
loader = poptorch.DataLoader(opts, Periodic(256, 20), batch_size=4, shuffle=True, collate_fn=collate)
valid_opts = poptorch.Options().deviceIterations(4)
valid_loader = poptorch.DataLoader(valid_opts, Periodic(32, 20), batch_size=4, collate_fn=collate)

model.train()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.01, accum_type=torch.float16)
training = poptorch.trainingModel(model, opts, optimizer)
validation = poptorch.inferenceModel(model, valid_opts)
perplexities = []
for epoch in range(4):
    model.train()
    for batch in loader:
        training(*batch)
    training.detachFromDevice()
    model.eval()
    losses = torch.cat([validation(*batch).reshape(-1) for batch in valid_loader])
    validation.detachFromDevice()
    perplexities.append(math.exp(losses.mean().item()))
    print(f"epoch {epoch}: validation perplexity {perplexities[-1]:.2f}")
assert losses.numel() == 8
assert perplexities[-1] < 0.6 * perplexities[0]
