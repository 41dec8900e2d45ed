"""BERT pretraining over four IPUs: embeddings on the first, encoder layers on the others, heads on the last."""

import torch
from program_kit import Items, TransformerLayer, following, save_memory, train
from torch import nn

import poptorch

HIDDEN, HEADS, VOCAB, LENGTH, MASKED, ACCUMULATION, STEPS = 32, 4, 128, 16, 3, 8, 12
LAYER_ON_IPU = [1, 2, 3]


def get_options():
    opts = poptorch.Options()
    opts.autoRoundNumIPUs(True).outputMode(poptorch.OutputMode.Sum).randomSeed(1984)
    opts.Training.gradientAccumulation(ACCUMULATION)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.enableExecutableCaching("cache")
    opts.setAvailableMemoryProportion({"IPU0": 0.15, "IPU1": 0.3, "IPU2": 0.3, "IPU3": 0.3})
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.SameAsIpu))
    opts.TensorLocations.setOptimizerLocation(
        poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(False)
    )
    opts.Precision.setPartialsType(torch.half)
    opts.Precision.enableStochasticRounding(True)
    save_memory(opts)
    opts._Popart.set("scheduleNonWeightUpdateGradientConsumersEarly", True)
    opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True})
    return opts


class SerializedEmbedding(nn.Module):
    """Split a large embedding table in parts that are looked up one after another."""

    def __init__(self, embedding, factor):
        super().__init__()
        self.size = embedding.num_embeddings // factor
        parts = embedding.weight.detach().clone().split(self.size)
        self.parts = nn.ModuleList(nn.Embedding.from_pretrained(part, freeze=False) for part in parts)

    def deserialize(self):
        return nn.Embedding.from_pretrained(torch.vstack([part.weight for part in self.parts]))

    def forward(self, indices):
        total = 0
        for i, part in enumerate(self.parts):
            local = indices - i * self.size
            mask = (local >= 0) & (local < self.size)
            values = part(torch.where(mask, local, torch.zeros_like(local)))
            total = total + values * mask.unsqueeze(-1).to(values.dtype)
        return total


class PipelinedBert(nn.Module):
    def __init__(self):
        super().__init__()
        self.word, self.position, self.segment = (nn.Embedding(n, HIDDEN) for n in (VOCAB, LENGTH, 2))
        self.norm = nn.LayerNorm(HIDDEN, eps=1e-5)
        self.layers = nn.ModuleList(TransformerLayer(HIDDEN, HEADS) for _ in LAYER_ON_IPU)
        self.pooler, self.nsp = nn.Linear(HIDDEN, HIDDEN), nn.Linear(HIDDEN, 2)
        self.mlm = nn.Linear(HIDDEN, VOCAB, bias=False)
        for parameter in (self.word, self.position, self.segment, self.mlm):
            nn.init.normal_(parameter.weight, std=0.02)
        self.hooks = []

    def parallelize(self):
        self.word = poptorch.BeginBlock(SerializedEmbedding(self.word, factor=4), "Embedding", ipu_id=0)
        for index, ipu in enumerate(LAYER_ON_IPU):
            hook = self.layers[index].register_forward_hook(lambda *args: poptorch.recomputationCheckpoint(args[-1]))
            self.hooks.append(hook)
            self.layers[index] = poptorch.BeginBlock(self.layers[index], f"Encoder{index}", ipu_id=ipu)
        self.pooler = poptorch.BeginBlock(self.pooler, "Pooler", ipu_id=3)

    def deparallelize(self):
        for hook in self.hooks:
            hook.remove()
        poptorch.removeBlocks(self)
        self.word = self.word.deserialize()

    def forward(self, input_ids, attention_mask, token_type_ids, masked_positions, masked_labels, next_sentence_label):
        positions = torch.arange(input_ids.shape[1]).expand_as(input_ids)
        x = self.norm(self.word(input_ids) + self.position(positions) + self.segment(token_type_ids))
        bias = ((1.0 - attention_mask.to(x.dtype)) * -10000.0)[:, None, None, :]
        for layer in self.layers:
            x = layer(x, bias)
        nsp = self.nsp(torch.tanh(self.pooler(x[:, 0])))
        masked = nn.functional.one_hot(masked_positions, x.shape[1]).to(x.dtype) @ x
        scores = poptorch.serializedMatMul(
            masked, self.mlm.weight.t(), poptorch.MatMulSerializationMode.OutputChannels, factor=4, keep_precision=True
        )
        mlm_loss = nn.functional.cross_entropy(scores.view(-1, VOCAB).float(), masked_labels.view(-1), ignore_index=0)
        nsp_loss = nn.functional.cross_entropy(nsp.float(), next_sentence_label.view(-1))
        mask = (masked_labels != 0).float()
        accuracy = ((scores.argmax(dim=-1) == masked_labels).float() * mask).sum() / mask.sum().clamp(min=1.0)
        return mlm_loss, nsp_loss, accuracy, poptorch.identity_loss(mlm_loss + nsp_loss, reduction="none")


def item(index, generator):
    generator.manual_seed(index % 4)
    tokens = torch.randint(5, VOCAB, (LENGTH,), generator=generator, dtype=torch.int)
    positions = torch.randperm(LENGTH - 1, generator=generator)[:MASKED] + 1
    labels = tokens[positions].long()
    tokens[positions] = 4
    segments = (torch.arange(LENGTH) > LENGTH // 2).int()
    return tokens, (torch.arange(LENGTH) < LENGTH - 2).int(), segments, positions, labels, torch.tensor([index % 2])


def get_optimizer(model):
    regularized, others = [], []
    for name, parameter in model.named_parameters():
        (others if name.endswith("bias") or "norm" in name else regularized).append(parameter)
    groups = [
        {"params": regularized, "weight_decay": 0.01},
        {"params": others, "weight_decay": 0, "max_weight_norm": 0},
    ]
    common = {"lr": 0.02, "weight_decay": 0, "loss_scaling": 256.0, "max_weight_norm": None, "bias_correction": True}
    optimizer = poptorch.optim.LAMB(
        groups,
        **common,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )
    optimizer.variable_attrs.markAsConstant("max_weight_norm")
    return optimizer


torch.manual_seed(1984)
opts = get_options()
data = Items(2 * ACCUMULATION * STEPS, item)
loader = poptorch.DataLoader(opts, data, batch_size=2, num_workers=0, drop_last=True, shuffle=False)
model = PipelinedBert()
before = {name: value.clone() for name, value in model.state_dict().items()}
model.parallelize()
model.half().train()
optimizer = get_optimizer(model)
scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / 3, max(0.1, (12 - step) / 9)))
poptorch_model = poptorch.trainingModel(model, opts, optimizer=optimizer)
poptorch_model.compile(*next(iter(loader)))
losses = train(poptorch_model, loader, after=following(scheduler, poptorch_model))
poptorch_model.detachFromDevice()
assert losses[-1] < losses[0] - 0.2 * ACCUMULATION, losses

model.float()
model.deparallelize()
torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "loss": losses[-1]}, "step_final.pt")
restored = PipelinedBert()
restored.load_state_dict(torch.load("step_final.pt")["model"])
assert set(restored.state_dict()) == set(before)
assert any((restored.state_dict()[name] != before[name]).any() for name in before)
