"""BERT pretraining over four IPUs: embeddings on the first, encoder layers on the others, heads on the last."""

import os
import tempfile
from types import SimpleNamespace

import numpy as np
import torch
from program_kit import Items
from torch import nn

import popart
import poptorch

CONFIG = SimpleNamespace(
    layers_per_ipu=[0, 1, 1, 1],
    hidden_size=32,
    num_attention_heads=4,
    vocab_size=128,
    sequence_length=16,
    mask_tokens=3,
    gradient_accumulation=8,
    training_steps=12,
)


def get_options(config, cache_dir):
    opts = poptorch.Options()
    opts.autoRoundNumIPUs(True)
    opts.Training.gradientAccumulation(config.gradient_accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.outputMode(poptorch.OutputMode.Sum)
    opts.randomSeed(1984)
    opts.enableExecutableCaching(cache_dir)
    opts.setAvailableMemoryProportion({"IPU0": 0.15, "IPU1": 0.3, "IPU2": 0.3, "IPU3": 0.3})
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(False)
    )
    opts.Precision.setPartialsType(torch.half)
    opts.Precision.enableStochasticRounding(True)

    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.set("scheduleNonWeightUpdateGradientConsumersEarly", True)
    opts._Popart.set(
        "accumulateOuterFragmentSettings.schedule", int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized)
    )
    opts._Popart.set("accumulateOuterFragmentSettings.excludedVirtualGraphs", ["0"])
    opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True})
    return opts


class SerializedEmbedding(nn.Module):
    """Split a large embedding table in parts that are looked up one after another."""

    def __init__(self, embedding, factor):
        super().__init__()
        assert embedding.num_embeddings % factor == 0
        self.split_size = embedding.num_embeddings // factor
        self.split_embeddings = nn.ModuleList(
            nn.Embedding.from_pretrained(
                embedding.weight[i * self.split_size : (i + 1) * self.split_size].detach().clone(), freeze=False
            )
            for i in range(factor)
        )

    def deserialize(self):
        return nn.Embedding.from_pretrained(torch.vstack([split.weight for split in self.split_embeddings]))

    def forward(self, indices):
        total = None
        for i, split in enumerate(self.split_embeddings):
            local = indices - i * self.split_size
            mask = ((local >= 0) & (local < self.split_size)).unsqueeze(-1)
            values = split(torch.where(mask.squeeze(-1), local, torch.zeros_like(local)))
            values = values * mask.to(values.dtype)
            total = values if total is None else total + values
        return total


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        h = config.hidden_size
        self.heads, self.size = config.num_attention_heads, h // config.num_attention_heads
        self.qkv = nn.Linear(h, 3 * h)
        self.out = nn.Linear(h, h)
        self.norm1, self.norm2 = nn.LayerNorm(h, eps=1e-5), nn.LayerNorm(h, eps=1e-5)
        self.ff = nn.Sequential(nn.Linear(h, 4 * h), nn.GELU(), nn.Linear(4 * h, h))

    def forward(self, x, bias):
        b, s, h = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, self.size).permute(2, 0, 3, 1, 4).unbind(0)
        scores = q @ k.transpose(-1, -2) / self.size**0.5 + bias
        context = (scores.softmax(-1) @ v).transpose(1, 2).reshape(b, s, h)
        x = self.norm1(x + self.out(context))
        return self.norm2(x + self.ff(x))


def recomputation_checkpoint(module):
    def recompute_outputs(module, inputs, outputs):
        return poptorch.recomputationCheckpoint(outputs)

    return module.register_forward_hook(recompute_outputs)


def accuracy_masked(out, targets, mask_val):
    predicted = out.argmax(dim=-1)
    mask = (targets != mask_val).float()
    return ((predicted == targets).float() * mask).sum() / mask.sum().clamp(min=1.0)


class PipelinedBert(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        h = config.hidden_size
        self.word = nn.Embedding(config.vocab_size, h)
        self.position = nn.Embedding(config.sequence_length, h)
        self.segment = nn.Embedding(2, h)
        self.norm = nn.LayerNorm(h, eps=1e-5)
        self.layers = nn.ModuleList(Layer(config) for _ in range(sum(config.layers_per_ipu)))
        self.pooler = nn.Linear(h, h)
        self.nsp = nn.Linear(h, 2)
        self.mlm = nn.Linear(h, config.vocab_size, bias=False)
        for parameter in (self.word, self.position, self.segment, self.mlm):
            nn.init.normal_(parameter.weight, std=0.02)
        self.hooks = []

    def parallelize(self):
        self.word = SerializedEmbedding(self.word, factor=4)
        self.word = poptorch.BeginBlock(self.word, "Embedding", ipu_id=0)
        placement = np.repeat(np.arange(len(self.config.layers_per_ipu)), self.config.layers_per_ipu)
        for index, ipu in enumerate(placement):
            self.hooks.append(recomputation_checkpoint(self.layers[index]))
            self.layers[index] = poptorch.BeginBlock(self.layers[index], f"Encoder{index}", ipu_id=int(ipu))
            print(f"Encoder {index:<2} --> IPU {ipu}")
        self.pooler = poptorch.BeginBlock(self.pooler, "Pooler", ipu_id=3)
        return self

    def deparallelize(self):
        for hook in self.hooks:
            hook.remove()
        poptorch.removeBlocks(self)
        self.word = self.word.deserialize()
        return self

    def forward(self, input_ids, attention_mask, token_type_ids, masked_lm_positions=None, masked_lm_labels=None,
                next_sentence_label=None):  # fmt: skip
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        x = self.word(input_ids) + self.position(positions) + self.segment(token_type_ids)
        x = self.norm(x)
        bias = ((1.0 - attention_mask.to(x.dtype)) * -10000.0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        pooled = torch.tanh(self.pooler(x[:, 0]))
        if masked_lm_positions is None:
            return pooled, x
        one_hot = nn.functional.one_hot(masked_lm_positions, x.shape[1]).to(x.dtype)
        masked = one_hot @ x
        scores = poptorch.serializedMatMul(
            masked, self.mlm.weight.t(), poptorch.MatMulSerializationMode.OutputChannels, factor=4, keep_precision=True
        )
        nsp = self.nsp(pooled)
        mlm_loss = nn.functional.cross_entropy(
            scores.view(-1, self.config.vocab_size).float(), masked_lm_labels.view(-1), ignore_index=0
        )
        nsp_loss = nn.functional.cross_entropy(nsp.float(), next_sentence_label.view(-1))
        total = poptorch.identity_loss(mlm_loss + nsp_loss, reduction="none")
        accuracy = accuracy_masked(scores, masked_lm_labels, 0)
        return total, mlm_loss, nsp_loss, accuracy


def pretraining_item(index, generator, c=CONFIG):
    generator.manual_seed(index % 4)
    tokens = torch.randint(5, c.vocab_size, (c.sequence_length,), generator=generator, dtype=torch.int)
    positions = torch.randperm(c.sequence_length - 1, generator=generator)[: c.mask_tokens] + 1
    labels = tokens[positions].long()
    tokens[positions] = 4
    mask = torch.ones(c.sequence_length, dtype=torch.int)
    mask[-2:] = 0
    segments = (torch.arange(c.sequence_length) > c.sequence_length // 2).int()
    return tokens, mask, segments, positions, labels, torch.tensor([index % 2])


def get_optimizer(model):
    regularized, others = [], []
    for name, parameter in model.named_parameters():
        (others if name.endswith("bias") or "norm" in name else regularized).append(parameter)
    params = [
        {"params": regularized, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0, "max_weight_norm": 0},
    ]
    optimizer = poptorch.optim.LAMB(
        params,
        lr=0.02,
        weight_decay=0,
        loss_scaling=256.0,
        max_weight_norm=None,
        bias_correction=True,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )
    optimizer.variable_attrs.markAsConstant("max_weight_norm")
    return optimizer


def get_lr_scheduler(optimizer, warmup, total):
    def schedule(step):
        if step < warmup:
            return (step + 1) / warmup
        return max(0.1, (total - step) / (total - warmup))

    return torch.optim.lr_scheduler.LambdaLR(optimizer, schedule)


def main():
    config = CONFIG
    torch.manual_seed(1984)
    with tempfile.TemporaryDirectory() as folder:
        opts = get_options(config, os.path.join(folder, "cache"))
        data = Items(10_000, pretraining_item)
        loader = poptorch.DataLoader(opts, data, batch_size=2, num_workers=0, drop_last=True, shuffle=False)
        model = PipelinedBert(config)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        model.parallelize().half().train()
        optimizer = get_optimizer(model)
        scheduler = get_lr_scheduler(optimizer, 3, config.training_steps)
        poptorch_model = poptorch.trainingModel(model, opts, optimizer=optimizer)

        datum = next(iter(loader))
        poptorch_model.compile(*datum)
        losses = []
        for step, batch in zip(range(config.training_steps), loader):
            outputs = poptorch_model(*batch)
            scheduler.step()
            poptorch_model.setOptimizer(optimizer)
            total, mlm, nsp, accuracy = (torch.div(out, config.gradient_accumulation).mean().item() for out in outputs)
            losses.append(total)
            print(f"step {step}: total loss {total:.3f} mlm {mlm:.3f} nsp {nsp:.3f} accuracy {accuracy:.3f}")
        poptorch_model.detachFromDevice()

        checkpoint = os.path.join(folder, "step_final.pt")
        model.float().deparallelize()
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": losses[-1]}, checkpoint)
        restored = PipelinedBert(config)
        restored.load_state_dict(torch.load(checkpoint)["model"])
        assert set(restored.state_dict()) == set(before)
        assert any((restored.state_dict()[name] != before[name]).any() for name in before)
    assert losses[-1] < losses[0] - 0.2, losses


if __name__ == "__main__":
    main()
