"""PopTorch's own operations in one model, and what it offers for debugging them."""

import torch
from program_kit import check_close, check_learned
from torch import nn

import poptorch


class Operations(nn.Module):
    def __init__(self):
        super().__init__()
        self.convs = nn.ModuleList(nn.Conv2d(1, 2, 3) for _ in range(2))
        self.weight = nn.Parameter(torch.eye(8))

    def forward(self, x, image, keys):
        on_ipu = poptorch.isRunningOnIpu()
        x = poptorch.for_loop(3, lambda x: (x * 2,), [poptorch.nop(x)])[0]
        x = poptorch.serializedMatMul(x, self.weight, poptorch.MatMulSerializationMode.ReducingDim, factor=2)
        x = poptorch.set_available_memory(x @ self.weight, 0.3)
        with poptorch.MultiConv().planType(poptorch.MultiConvPlanType.Parallel).availableMemoryProportions(0.5):
            images = [conv(image) for conv in self.convs]
        with poptorch.NameScope("tail"):
            x = poptorch.ipu_print_tensor(x, "x")
            lengths = torch.full((keys.size(1),), keys.size(0), dtype=torch.int32)
            scaled = poptorch.ctc_beam_search_decoder(keys, lengths, blank=0, beam_width=3, top_paths=1)
        with poptorch.Attribute(__schedule_priority={"p": 2}):
            y = torch.stack(images).sum(0)
        return x if on_ipu else -x, y, scaled[0], poptorch.identity_loss(x.sum() + y.sum(), reduction="none")


class Host(nn.Module):
    """A part that runs on the host in the middle of the program."""

    def __init__(self):
        super().__init__()
        self.cpu = poptorch.CPU(self.on_cpu, "Rounding")
        self.scale = 10.0

    def on_cpu(self, x):
        return torch.round(x * self.scale) / self.scale

    def forward(self, x):
        return self.cpu(x) + 1


class CustomLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 1)

    def forward(self, x, y):
        out = self.linear(x)
        first = poptorch.identity_loss(((out - y) ** 2), reduction="mean")
        second = poptorch.identity_loss(out.abs(), reduction="sum")
        return out, poptorch.identity_loss(first + 1e-3 * second, reduction="none")


torch.manual_seed(0)
poptorch.setLogLevel("WARN")
model = Operations().eval()
x, image = torch.randn(2, 8), torch.randn(2, 1, 6, 6)
keys = torch.randn(7, 2, 5).log_softmax(-1)
out, y, scores, loss = poptorch.inferenceModel(model, poptorch.Options())(x, image, keys)
check_close(out, 8 * x)
check_close(y, sum(conv(image) for conv in model.convs))
assert not poptorch.isRunningOnIpu()
check_close(poptorch.inferenceModel(Host())(torch.tensor([0.123, 0.456])), torch.tensor([1.1, 1.5]))

model = CustomLoss()
training = poptorch.trainingModel(model, optimizer=poptorch.optim.SGD(model.parameters(), lr=0.1))
inputs, targets = torch.randn(32, 4), torch.ones(32, 1)
check_learned([training(inputs, targets)[1].item() for _ in range(20)], 0.3)
training.detachFromDevice()
try:
    training.detachFromDevice()
except poptorch.Error as error:
    print("detaching twice:", error)
