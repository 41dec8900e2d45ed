"""Every way to say which layer runs where gives the same outputs: blocks, decorators, stages, phases, sharding."""

import torch
from program_kit import check_close

import poptorch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        sizes = (5, 10, 10, 5, 5)
        layers = (torch.nn.Sequential(torch.nn.Linear(n, m), torch.nn.ReLU()) for n, m in zip(sizes, sizes[1:]))
        self.layer1, self.layer2, self.layer3, self.layer4 = layers

    def compute(self, x):
        for i, layer in enumerate((self.layer1, self.layer2, self.layer3), start=1):
            with poptorch.Block(f"B{i}"):
                x = layer(x)
        poptorch.Block.start("B4")
        return self.layer4(x)

    def forward(self, x, target):
        x = self.compute(x)
        return x, torch.nn.functional.mse_loss(x, target)


class BeginBlocks(Network):
    def compute(self, x):
        poptorch.Block.start("B1", ipu_id=0)
        x = self.layer2(self.layer1(x))
        poptorch.Block.start("B3", ipu_id=1)
        return self.layer4(self.layer3(x))


class Decorated(Network):
    @poptorch.BlockFunction("first", ipu_id=0)
    def first(self, x):
        return self.layer2(self.layer1(x))

    @poptorch.BlockFunction("second", ipu_id=1)
    def second(self, x, target):
        x = self.layer4(self.layer3(x))
        return x, torch.nn.functional.mse_loss(x, target)

    def forward(self, x, target):
        return self.second(self.first(x), target)


class WrappedLayers(Network):
    def __init__(self):
        super().__init__()
        self.layer3 = poptorch.BeginBlock(self.layer3, "B3", ipu_id=1)

    def compute(self, x):
        return self.layer4(self.layer3(self.layer2(self.layer1(x))))


def serial_phased():
    strategy = poptorch.SerialPhasedExecution(*([poptorch.Stage(f"B{i}")] for i in range(1, 5)))
    for i in range(1, 5):
        strategy.stage(f"B{i}").ipu(0)
    strategy.setTensorsLiveness(poptorch.Liveness.AlwaysLive)
    return strategy


def parallel_phased():
    strategy = poptorch.ParallelPhasedExecution(*(poptorch.Phase(f"B{i}") for i in range(1, 5)))
    for i in range(4):
        strategy.phase(i).ipus(i % 2)
    return strategy


STAGES = [poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3").ipu(1), poptorch.Stage("B4").ipu(1)]
WAYS = {
    "decorated": (Decorated, None),
    "pipelined": (Network, lambda: poptorch.PipelinedExecution(*STAGES)),
    "auto increment": (Network, lambda: poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement)),
    "sharded": (BeginBlocks, poptorch.ShardedExecution),
    "wrapped": (WrappedLayers, None),
    "serial phased": (Network, serial_phased),
    "parallel phased": (Network, parallel_phased),
}


def run(name):
    torch.manual_seed(0)
    network, strategy = WAYS[name]
    model, opts = network(), poptorch.Options().outputMode(poptorch.OutputMode.All)
    opts.Training.gradientAccumulation(10)
    if strategy is not None:
        opts.setExecutionStrategy(strategy())
    if name == "parallel phased":
        opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    x, target = torch.randn(20, 5), torch.rand(20, 5)
    outputs = [training(x, target) for _ in range(3)]
    training.destroy()
    return outputs


reference = run("decorated")
assert reference[-1][1].mean() < reference[0][1].mean()
for name in WAYS:
    print(name)
    check_close(run(name), reference, 1e-5)
