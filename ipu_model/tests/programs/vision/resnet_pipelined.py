"""A torchvision ResNet split over four pipelined IPUs at named layers, trained from scratch and validated."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torchvision
from program_kit import Items, stacked, train

import popart
import poptorch

SPLITS = ["layer2", "layer3/0", "layer4"]


def replace_norms(module, groups=8):
    """Swap batch norm for group norm, which does not depend on the (small) micro-batch."""
    for name, child in module.named_children():
        if isinstance(child, nn.BatchNorm2d):
            setattr(module, name, nn.GroupNorm(min(groups, child.num_features), child.num_features))
        else:
            replace_norms(child, groups)


def find_layer(model, path):
    layer, parent, name = model, None, None
    for part in path.split("/"):
        parent, name = layer, part
        layer = layer[int(part)] if part.isdigit() else getattr(layer, part)
    return parent, name, layer


def pipeline_model(model, splits):
    for ipu, path in enumerate(splits, start=1):
        parent, name, layer = find_layer(model, path)
        block = poptorch.BeginBlock(ipu_id=ipu, layer_to_call=layer, user_id=f"stage{ipu}")
        if name.isdigit():
            parent[int(name)] = block
        else:
            setattr(parent, name, block)
    return model


class ModelWithLoss(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model = model
        self.loss = nn.CrossEntropyLoss(reduction="mean", label_smoothing=0.05)

    def forward(self, args, loss_inputs=None):
        output = self.model(args)
        if loss_inputs is None:
            return output
        return output, self.loss(output, loss_inputs)


def grating(index, generator):
    """Stripes of one of three directions with noise."""
    label = int(torch.randint(3, (), generator=generator))
    rows, columns = torch.meshgrid(torch.arange(32.0), torch.arange(32.0), indexing="ij")
    wave = torch.sin((rows, columns, (rows + columns) / 1.4)[label])
    return wave + 0.4 * torch.randn(3, 32, 32, generator=generator), label


def main():
    args = SimpleNamespace(gradient_accumulation=8, steps=6, recompute_checkpoints=["layer1", "layer2"])
    torch.manual_seed(0)

    model = torchvision.models.resnet18(weights=None, num_classes=3)
    replace_norms(model)
    model = pipeline_model(model, SPLITS)
    for name, module in model.named_modules():
        if name in args.recompute_checkpoints:
            module.register_forward_hook(lambda _, __, output: poptorch.recomputationCheckpoint(output))
    poptorch.print(model)

    opts = poptorch.Options()
    opts.Training.gradientAccumulation(args.gradient_accumulation)
    opts.outputMode(poptorch.OutputMode.Sum)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    opts.setAvailableMemoryProportion({f"IPU{i}": 0.2 for i in range(4)})
    opts._Popart.set("autoRecomputation", int(popart.RecomputationType.Pipeline))
    opts._Popart.set("explicitRecomputation", False)
    opts.Training.accumulationAndReplicationReductionType(poptorch.ReductionType.Mean)

    with_loss = ModelWithLoss(model)
    optimizer = poptorch.optim.SGD(with_loss.parameters(), lr=0.0005, momentum=0.9, use_combined_accum=True)
    training_model = poptorch.trainingModel(with_loss, opts, optimizer)
    loader = poptorch.DataLoader(
        opts,
        Items(2 * args.gradient_accumulation * args.steps, grating),
        batch_size=2,
        num_workers=2,
        persistent_workers=True,
    )
    losses = train(training_model, loader)
    loader.terminate()
    training_model.copyWeightsToHost()

    with_loss.eval()
    inference_opts = poptorch.Options().deviceIterations(4)
    inference_opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    inference = poptorch.inferenceModel(with_loss, inference_opts)
    images, _ = stacked(Items(8, grating)[i] for i in range(8))
    on_ipu = inference(images)
    training_model.detachFromDevice()
    reference = torchvision.models.resnet18(weights=None, num_classes=3)
    replace_norms(reference)
    reference.load_state_dict(model.state_dict())
    torch.testing.assert_close(on_ipu, reference.eval()(images), rtol=1e-3, atol=1e-3)
    assert len(losses) == args.steps
    assert min(losses[-2:]) < losses[0], losses


if __name__ == "__main__":
    main()
