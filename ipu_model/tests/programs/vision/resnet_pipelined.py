"""A torchvision ResNet split over four pipelined IPUs at named layers, trained from scratch and validated."""

import torch
from program_kit import Items, WithLoss, check_close, stacked, train
from torch import nn
from torchvision.models import resnet18

import popart
import poptorch

ACCUMULATION, STEPS = 8, 6
SPLITS = ["layer2", "layer3/0", "layer4"]


def replace_norms(module, groups=8):
    """Swap batch norm for group norm, which does not depend on the (small) micro-batch."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(min(groups, child.num_features), child.num_features))
        else:
            replace_norms(child, groups)
    return module


def pipeline_model(model):
    for ipu, path in enumerate(SPLITS, start=1):
        *parents, name = path.split("/")
        parent = model.get_submodule(".".join(parents))
        block = poptorch.BeginBlock(ipu_id=ipu, layer_to_call=parent.get_submodule(name), user_id=f"stage{ipu}")
        if name.isdigit():
            parent[int(name)] = block
        else:
            setattr(parent, name, block)
    return model


def grating(index, generator):
    """Stripes of one of three directions with noise."""
    label = int(torch.randint(3, (), generator=generator))
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    wave = torch.sin((rows, columns, (rows + columns) / 1.4)[label])
    return wave + 0.4 * torch.randn(3, 32, 32, generator=generator), label


torch.manual_seed(0)
model = pipeline_model(replace_norms(resnet18(weights=None, num_classes=3)))
for name, module in model.named_modules():
    if name in ("layer1", "layer2"):
        module.register_forward_hook(lambda _, __, output: poptorch.recomputationCheckpoint(output))
poptorch.print(model)
opts = poptorch.Options().outputMode(poptorch.OutputMode.Sum)
opts.Training.gradientAccumulation(ACCUMULATION)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
opts.setAvailableMemoryProportion({f"IPU{i}": 0.2 for i in range(4)})
opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
opts._Popart.set("explicitRecomputation", False)
opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)
with_loss = WithLoss(model, nn.CrossEntropyLoss(reduction="mean", label_smoothing=0.05))
optimizer = poptorch.optim.SGD(with_loss.parameters(), lr=0.0005, momentum=0.9, use_combined_accum=True)
training_model = poptorch.trainingModel(with_loss, opts, optimizer)
data = Items(2 * ACCUMULATION * STEPS, grating)
loader = poptorch.DataLoader(opts, data, batch_size=2, num_workers=2, persistent_workers=True)
losses = train(training_model, loader)
loader.terminate()
training_model.copyWeightsToHost()
assert len(losses) == STEPS
assert min(losses[-2:]) < losses[0], losses

opts = poptorch.Options().deviceIterations(4)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
images, _ = stacked(data[i] for i in range(8))
on_ipu = poptorch.inferenceModel(with_loss.eval(), opts)(images)
training_model.detachFromDevice()
reference = replace_norms(resnet18(weights=None, num_classes=3))
reference.load_state_dict(model.state_dict())
check_close(on_ipu, reference.eval()(images), 1e-3)
