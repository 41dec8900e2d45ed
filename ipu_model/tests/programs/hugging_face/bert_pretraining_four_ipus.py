# needs: transformers
"""BERT pretraining from transformers' model, pipelined over four IPUs.

The word embedding is tied to the language-model head, so both are on the first IPU. Layers carry recomputation
checkpoints, the optimiser is LAMB with half-precision accumulation, the head is a serialized matrix product.
"""

import random
import sys

import numpy as np
import torch
import torch.nn as nn
import transformers
from transformers import BertConfig, BertForPreTraining

import popart
import poptorch

config = BertConfig(
    vocab_size=96,
    hidden_size=32,
    num_hidden_layers=4,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=32,
    hidden_dropout_prob=0.1,
    attention_probs_dropout_prob=0.1,
    attn_implementation="eager",
)
config.layers_per_ipu = [0, 1, 1, 2]
config.micro_batch_size = 2
config.gradient_accumulation = 10
config.training_steps = 10
config.max_predictions = 4
config.random_seed = 42


def set_seeds(seed):
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)
    transformers.set_seed(seed)


def outline_attribute(module: nn.Module, value: str):
    """Add an attribute to every op of a module, for the outliner."""
    context = poptorch.Attribute(__outline={"layer": value})

    def enable(*args):
        context.__enter__()

    def disable(*args):
        context.__exit__(None, None, None)

    return [module.register_forward_pre_hook(enable), module.register_forward_hook(disable)]


def recomputation_checkpoint(module: nn.Module):
    def recompute_outputs(module, inputs, outputs):
        if isinstance(outputs, torch.Tensor):
            return poptorch.recomputationCheckpoint(outputs)
        return tuple(poptorch.recomputationCheckpoint(y) for y in outputs)

    return module.register_forward_hook(recompute_outputs)


class OnehotGather(nn.Module):
    def forward(self, sequence, positions):
        one_hot = nn.functional.one_hot(positions, sequence.shape[1]).to(dtype=sequence.dtype)
        return torch.matmul(one_hot.detach(), sequence)


class SerializedLinear(nn.Linear):
    def __init__(
        self, in_features, out_features, factor, bias=False, mode=poptorch.MatMulSerializationMode.OutputChannels
    ):
        super().__init__(in_features, out_features, bias)
        self.mode, self.factor = mode, factor

    def forward(self, x):
        output = poptorch.serializedMatMul(x, self.weight.t(), self.mode, self.factor)
        return output + self.bias if self.bias is not None else output


class PipelinedBertForPretraining(BertForPreTraining):
    def __init__(self, config):
        super().__init__(config)
        self.gather_indices = OnehotGather()

    def parallelize(self):
        decoder = SerializedLinear(self.config.hidden_size, self.config.vocab_size, 4, bias=True)
        decoder.load_state_dict(self.cls.predictions.decoder.state_dict())
        self.cls.predictions.decoder = decoder
        self.cls.predictions.decoder.weight = self.bert.embeddings.word_embeddings.weight

        print("-------------------- Device Allocation --------------------")
        print("Embedding  --> IPU 0")
        self.bert.embeddings = poptorch.BeginBlock(self.bert.embeddings, "Embedding", 0)
        placement = [ipu for ipu, count in enumerate(self.config.layers_per_ipu) for _ in range(count)]
        for index, (layer, ipu) in enumerate(zip(self.bert.encoder.layer, placement)):
            recomputation_checkpoint(layer)
            outline_attribute(layer.output.LayerNorm, "LayerNorm")
            self.bert.encoder.layer[index] = poptorch.BeginBlock(layer, f"Encoder{index}", ipu_id=ipu)
            print(f"Encoder {index:<2} --> IPU {ipu}")
        print("Pooler     --> IPU 0")
        self.bert.pooler = poptorch.BeginBlock(self.bert.pooler, "Pooler", ipu_id=0)
        print("Classifier --> IPU 0")
        self.cls = poptorch.BeginBlock(self.cls, "Classifier", ipu_id=0)
        return self

    def forward(
        self, input_ids, attention_mask, token_type_ids, masked_lm_positions, masked_lm_labels, next_sentence_label
    ):
        outputs = self.bert(input_ids, attention_mask=attention_mask, token_type_ids=token_type_ids)
        sequence_output, pooled_output = outputs[:2]
        masked_output = self.gather_indices(sequence_output, masked_lm_positions)
        scores, relationship = self.cls(masked_output, pooled_output)
        mlm_loss = nn.functional.cross_entropy(
            scores.view(-1, self.config.vocab_size), masked_lm_labels.view(-1), ignore_index=0
        ).float()
        nsp_loss = nn.functional.cross_entropy(relationship.view(-1, 2), next_sentence_label.view(-1)).float()
        total_loss = poptorch.identity_loss(mlm_loss + nsp_loss, reduction="none")
        nsp_acc = (relationship.argmax(-1) == next_sentence_label.view(-1)).float().mean()
        return total_loss, mlm_loss, nsp_loss, nsp_acc


def get_options():
    opts = poptorch.Options()
    opts.deviceIterations(1)
    opts.Training.gradientAccumulation(config.gradient_accumulation)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
    opts.outputMode(poptorch.OutputMode.Sum)
    opts.randomSeed(config.random_seed)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    opts.setAvailableMemoryProportion({f"IPU{i}": 0.2 for i in range(4)})
    opts.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    opts.Precision.setPartialsType(torch.float16)
    opts.Precision.enableStochasticRounding(True)
    opts._Popart.set("disableGradAccumulationTensorStreams", True)
    opts._Popart.set("outlineThreshold", 10.0)
    opts._Popart.set("subgraphCopyingStrategy", int(popart.SubgraphCopyingStrategy.JustInTime))
    opts._Popart.set("accumulateOuterFragmentSettings.schedule",
                     int(popart.AccumulateOuterFragmentSchedule.OverlapMemoryOptimized))  # fmt: skip
    opts._Popart.setPatterns({"TiedGather": True, "TiedGatherAccumulate": True, "UpdateInplacePrioritiesForIpu": True})
    return opts


class SyntheticPretraining(torch.utils.data.Dataset):
    def __len__(self):
        return 10 * config.micro_batch_size * config.gradient_accumulation

    def __getitem__(self, index):
        rng = np.random.default_rng(index % 4)
        length = 16
        ids = rng.integers(5, config.vocab_size, length).astype(np.int32)
        positions = np.sort(rng.choice(np.arange(1, length - 3), config.max_predictions, replace=False)).astype(
            np.int64
        )
        labels = ids[positions].astype(np.int64)
        ids[positions] = 3
        mask = (np.arange(length) < length - 2).astype(np.int32)
        segments = (np.arange(length) > 7).astype(np.int32)
        return ids, mask, segments, positions, labels, np.array([index % 2], dtype=np.int64)


def get_optimizer(model):
    params_with_decay, params_without_decay = [], []
    for name, param in model.named_parameters():
        if "bias" in name or "LayerNorm" in name:
            params_without_decay.append(param)
        else:
            params_with_decay.append(param)
    groups = [
        {"params": params_with_decay, "weight_decay": 0.01},
        {"params": params_without_decay, "weight_decay": 0, "max_weight_norm": 0},
    ]
    optimizer = poptorch.optim.LAMB(
        groups,
        lr=0.01,
        loss_scaling=64.0,
        max_weight_norm=65500,
        bias_correction=True,
        accum_type=torch.float16,
        first_order_momentum_accum_type=torch.float16,
        second_order_momentum_accum_type=torch.float32,
    )
    optimizer.variable_attrs.markAsConstant("max_weight_norm")
    return optimizer


if __name__ == "__main__":
    set_seeds(config.random_seed)
    opts = get_options()
    loader = poptorch.DataLoader(opts, SyntheticPretraining(), batch_size=config.micro_batch_size, num_workers=0)
    model = PipelinedBertForPretraining(config).parallelize().half().train()
    tied = model.cls.predictions.decoder.weight is model.bert.embeddings.word_embeddings.weight
    optimizer = get_optimizer(model)
    scheduler = transformers.get_linear_schedule_with_warmup(optimizer, 2, config.training_steps + 4)
    poptorch_model = poptorch.trainingModel(model, opts, optimizer=optimizer)

    losses = []
    for step, batch in enumerate(loader):
        outputs = poptorch_model(*batch)
        scheduler.step()
        poptorch_model.setOptimizer(optimizer)
        loss, mlm, nsp, accuracy = (out.item() / config.gradient_accumulation for out in outputs)
        losses.append(loss)
        print(f"step {step}: loss {loss:.3f} (mlm {mlm:.3f}, nsp {nsp:.3f}), nsp accuracy {accuracy:.2f}, "
              f"lr {scheduler.get_last_lr()[0]:.2e}")  # fmt: skip
    poptorch_model.detachFromDevice()
    if not tied or len(losses) != config.training_steps or not losses[-1] < losses[0] - 0.1:
        sys.exit(f"pretraining did not make progress: {losses}")
