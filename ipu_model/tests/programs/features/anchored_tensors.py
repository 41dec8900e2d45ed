"""Look inside a model: anchored tensors, gradients by name, printed tensors, cycle counts, timings."""

import numpy as np
import torch
from program_kit import SelfAttention

import poptorch


class Model(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.attention, self.head = SelfAttention(dim, heads=2), torch.nn.Linear(dim, 2)
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, y):
        logits = poptorch.ipu_print_tensor(self.head(self.attention(x).mean(1)), "logits")
        return logits.argmax(-1), self.loss(logits, y)


torch.manual_seed(0)
model = Model(16)
opts = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.All).logCycleCount(True)
opts.anchorTensor("grad_qkv", "Gradient___attention.qkv.weight")
opts.anchorTensor("update_head", "UpdatedVar___head.weight", poptorch.OutputMode.Final)
opts.anchorTensor("bias", "attention.proj.bias")
optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, velocity_accum_type=torch.float32, use_combined_accum=False)
training = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
x, y = torch.randn(8, 5, 16), torch.randint(0, 2, (8,))
training.compile(x, y)
names = training.getTensorNames()
assert any(name.startswith("Gradient___") for name in names), names[:10]

before = model.attention.qkv.weight.detach().clone()
prediction, loss = training(x, y)
gradient = training.getAnchoredTensor("grad_qkv")
print("histogram of the gradient:", np.histogram(gradient.numpy(), bins=8)[0], "cycles:", training.cycleCount())
assert gradient.shape == (2, 48, 16) or gradient.shape == (2 * 48, 16), gradient.shape
assert prediction.shape == (8,) and loss.shape == (2,)
assert training.cycleCount() > 0
latency = training.getLatency()
assert len(latency) == len(training.getComputeLatency()) == len(training.getHostIpuLatency()) == 3
assert latency[0] <= latency[2] <= latency[1]

# The two gradients times the learning rate are the change of the weight.
training.copyWeightsToHost()
change = before - model.attention.qkv.weight.detach()
torch.testing.assert_close(change, 0.1 * gradient.reshape(2, 48, 16).sum(0), rtol=1e-4, atol=1e-6)
assert torch.isfinite(training.getAnchoredTensor("bias")).all()
