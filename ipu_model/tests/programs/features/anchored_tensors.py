"""Look inside a model: anchored tensors, gradients by name, printed tensors, cycle counts, timings."""

import numpy as np
import torch

import poptorch


class Model(torch.nn.Module):
    def __init__(self, data_dim, heads):
        super().__init__()
        self.data_dim = data_dim
        self.scale = data_dim**-0.5
        self.qkv = torch.nn.Linear(data_dim, 3 * data_dim, bias=False)
        self.proj = torch.nn.Linear(data_dim, data_dim)
        self.head = torch.nn.Linear(data_dim, 2)
        self.heads = heads
        self.loss = torch.nn.CrossEntropyLoss()

    def forward(self, x, y):
        b, n, d = x.shape
        q, k, v = self.qkv(x).reshape(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        attention = ((q @ k.transpose(-2, -1)) * self.scale).softmax(dim=-1)
        x = self.proj((attention @ v).transpose(1, 2).reshape(b, n, d))
        logits = self.head(x.mean(1))
        logits = poptorch.ipu_print_tensor(logits, "logits")
        return logits.argmax(-1), self.loss(logits, y)


def gradient_histogram(gradient, bins=8):
    values = gradient[np.isfinite(gradient)].flatten()
    counts, _ = np.histogram(values, bins=bins)
    return counts


torch.manual_seed(0)
np.random.seed(0)
model = Model(16, 2)

opts = poptorch.Options()
opts.outputMode(poptorch.OutputMode.All)
opts.deviceIterations(2)
opts.logCycleCount(True)
opts.anchorTensor("grad_qkv", "Gradient___qkv.weight")
opts.anchorTensor("update_head", "UpdatedVar___head.weight", poptorch.OutputMode.Final)
opts.anchorTensor("bias", "proj.bias")

optimizer = poptorch.optim.SGD(model.parameters(), lr=0.1, velocity_accum_type=torch.float32, use_combined_accum=False)
training = poptorch.trainingModel(model, options=opts, optimizer=optimizer)
x, y = torch.randn(8, 5, 16), torch.randint(0, 2, (8,))
training.compile(x, y)

names = training.getTensorNames()
assert any(name.startswith("Gradient___") for name in names), names[:10]
print(f"{len(names)} tensors, among them {sorted(n for n in names if 'qkv' in n)[:4]}")

before = model.qkv.weight.detach().clone()
prediction, loss = training(x, y)
gradient = training.getAnchoredTensor("grad_qkv")
assert gradient.shape == (2, 48, 16) or gradient.shape == (2 * 48, 16), gradient.shape
assert prediction.shape == (8,) and loss.shape == (2,)
print("histogram of the gradient:", gradient_histogram(gradient.numpy()))
print("cycles:", training.cycleCount())
assert training.cycleCount() > 0
latency = training.getLatency()
compute = training.getComputeLatency()
host = training.getHostIpuLatency()
assert len(latency) == len(compute) == len(host) == 3 and latency[0] <= latency[2] <= latency[1]

# The two gradients times the learning rate are the change of the weight.
training.copyWeightsToHost()
change = before - model.qkv.weight.detach()
torch.testing.assert_close(change, 0.1 * gradient.reshape(2, 48, 16).sum(0), rtol=1e-4, atol=1e-6)
assert torch.isfinite(training.getAnchoredTensor("bias")).all()
