"""Every way to say which layer runs where gives the same outputs: blocks, decorators, stages, phases, sharding."""

import torch

import poptorch


class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = torch.nn.Linear(5, 10), torch.nn.Linear(10, 10)
        self.layer3, self.layer4 = torch.nn.Linear(10, 5), torch.nn.Linear(5, 5)
        self.act = torch.nn.ReLU()
        self.loss = torch.nn.MSELoss()

    def head(self, x):
        return self.act(self.layer4(x))

    def forward(self, x, target):
        with poptorch.Block("B1"):
            x = self.act(self.layer1(x))
        with poptorch.Block("B2"):
            x = self.act(self.layer2(x))
        with poptorch.Block("B3"):
            x = self.act(self.layer3(x))
        with poptorch.Block("B4"):
            x = self.head(x)
            return x, self.loss(x, target)


class BeginBlocks(Network):
    def forward(self, x, target):
        poptorch.Block.start("B1", ipu_id=0)
        x = self.act(self.layer1(x))
        x = self.act(self.layer2(x))
        poptorch.Block.start("B3", ipu_id=1)
        x = self.act(self.layer3(x))
        x = self.head(x)
        return x, self.loss(x, target)


class Decorated(Network):
    @poptorch.BlockFunction("first", ipu_id=0)
    def first(self, x):
        return self.act(self.layer2(self.act(self.layer1(x))))

    @poptorch.BlockFunction("second", ipu_id=1)
    def second(self, x, target):
        x = self.head(self.act(self.layer3(x)))
        return x, self.loss(x, target)

    def forward(self, x, target):
        return self.second(self.first(x), target)


class WrappedLayers(Network):
    def __init__(self):
        super().__init__()
        self.layer3 = poptorch.BeginBlock(self.layer3, "B3", ipu_id=1)

    def forward(self, x, target):
        x = self.act(self.layer3(self.act(self.layer2(self.act(self.layer1(x))))))
        x = self.head(x)
        return x, self.loss(x, target)


def pipelined():
    stages = [poptorch.Stage("B1", "B2").ipu(0), poptorch.Stage("B3").ipu(1), poptorch.Stage("B4").ipu(1)]
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.PipelinedExecution(*stages))
    opts.Training.gradientAccumulation(10)
    return Network, opts


def auto_increment():
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    opts.Training.gradientAccumulation(10)
    return Network, opts


def sharded():
    opts = poptorch.Options()
    opts.setExecutionStrategy(poptorch.ShardedExecution())
    opts.Training.gradientAccumulation(10)
    return BeginBlocks, opts


def decorated():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(10)
    return Decorated, opts


def wrapped():
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(10)
    return WrappedLayers, opts


def serial_phased():
    strategy = poptorch.SerialPhasedExecution([poptorch.Stage("B1")], [poptorch.Stage("B2")], [poptorch.Stage("B3")],
                                              [poptorch.Stage("B4")])  # fmt: skip
    for name in ("B1", "B2", "B3", "B4"):
        strategy.stage(name).ipu(0)
    strategy.setTensorsLiveness(poptorch.Liveness.AlwaysLive)
    opts = poptorch.Options()
    opts.setExecutionStrategy(strategy)
    opts.Training.gradientAccumulation(10)
    return Network, opts


def parallel_phased():
    phases = [poptorch.Phase("B1"), poptorch.Phase("B2"), poptorch.Phase("B3"), poptorch.Phase("B4")]
    strategy = poptorch.ParallelPhasedExecution(*phases)
    strategy.phase(0).ipus(0)
    strategy.phase(1).ipus(1)
    strategy.phase(2).ipus(0)
    strategy.phase(3).ipus(1)
    opts = poptorch.Options()
    opts.setExecutionStrategy(strategy)
    opts.Training.gradientAccumulation(10)
    opts.TensorLocations.setActivationLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))
    return Network, opts


def run(make):
    torch.manual_seed(0)
    cls, opts = make()
    model = cls()
    opts.outputMode(poptorch.OutputMode.All)
    training = poptorch.trainingModel(model, opts, poptorch.optim.SGD(model.parameters(), lr=0.1))
    x, target = torch.randn(20, 5), torch.rand(20, 5)
    outputs = [training(x, target) for _ in range(3)]
    training.destroy()
    return torch.stack([out for out, _ in outputs]), torch.stack([loss for _, loss in outputs])


if __name__ == "__main__":
    reference, reference_loss = run(decorated)
    assert reference_loss[-1].mean() < reference_loss[0].mean()
    for make in (pipelined, auto_increment, sharded, wrapped, serial_phased, parallel_phased):
        out, loss = run(make)
        torch.testing.assert_close(out, reference, rtol=1e-5, atol=1e-6, msg=lambda m, n=make.__name__: f"{n}: {m}")
        print(f"{make.__name__}: loss {loss[0].mean():.4f} -> {loss[-1].mean():.4f}")
