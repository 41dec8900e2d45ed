"""WaveNet on mu-law samples with skip connections and gates; generation feeds the receptive field back."""

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

QUANTIZATION = 32
LAYERS = 5


def mu_law_encode(x, mu=QUANTIZATION - 1):
    y = torch.sign(x) * torch.log1p(mu * x.abs()) / torch.log1p(torch.tensor(float(mu)))
    return ((y + 1) / 2 * mu + 0.5).long()


class CausalConv(nn.Conv1d):
    def __init__(self, *args, dilation=1, **kwargs):
        super().__init__(*args, dilation=dilation, **kwargs)
        self.left = (self.kernel_size[0] - 1) * dilation

    def forward(self, x):
        return super().forward(F.pad(x, (self.left, 0)))


class GatedLayer(nn.Module):
    def __init__(self, channels, skip, dilation):
        super().__init__()
        self.conv = CausalConv(channels, 2 * channels, 2, dilation=dilation)
        self.condition = nn.Conv1d(4, 2 * channels, 1, bias=False)
        self.residual, self.skip = nn.Conv1d(channels, channels, 1), nn.Conv1d(channels, skip, 1)

    def forward(self, x, condition):
        signal, gate = torch.chunk(self.conv(x) + self.condition(condition), 2, dim=1)
        hidden = torch.tanh(signal) * torch.sigmoid(gate)
        return (x + self.residual(hidden)) * 0.5**0.5, self.skip(hidden)


class WaveNet(nn.Module):
    def __init__(self, channels=16, skip=16):
        super().__init__()
        self.first = CausalConv(QUANTIZATION, channels, 2)
        self.layers = nn.ModuleList(GatedLayer(channels, skip, 2**i) for i in range(LAYERS))
        self.end = nn.Sequential(nn.ReLU(), nn.Conv1d(skip, skip, 1), nn.ReLU(), nn.Conv1d(skip, QUANTIZATION, 1))
        self.receptive_field = 2 + sum(2**i for i in range(LAYERS))

    def forward(self, samples, condition, target=None):
        x = self.first(F.one_hot(samples, QUANTIZATION).to(torch.float32).transpose(1, 2))
        condition = condition.unsqueeze(-1).expand(-1, -1, x.size(-1))
        total = 0
        for layer in self.layers:
            x, skip = layer(x, condition)
            total = total + skip
        logits = self.end(total)
        if target is None:
            return logits[..., -1]
        return poptorch.identity_loss(F.cross_entropy(logits, target), reduction="none")


def tones(n, length):
    pitch = torch.randint(0, 4, (n,))
    t = torch.arange(length + 1)
    wave = 0.8 * torch.sin(t[None] * (0.3 + 0.15 * pitch[:, None]) + 6.28 * torch.rand(n, 1))
    samples = mu_law_encode(wave)
    return samples[:, :-1], F.one_hot(pitch, 4).float(), samples[:, 1:]


def main():
    torch.manual_seed(0)
    model = WaveNet()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.Training.setConvolutionDithering(True)
    optimizer = poptorch.optim.RMSprop(model.parameters(), lr=4e-3, centered=True)
    training = poptorch.trainingModel(model, opts, optimizer)
    losses = [training(*tones(16, 64)).item() for _ in range(100)]
    print(f"loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    training.destroy()

    model.eval()
    inference = poptorch.inferenceModel(model)
    field = model.receptive_field
    history, condition, _ = tones(1, field)
    generated = history
    for _ in range(16):
        logits = inference(generated[:, -field:].contiguous(), condition)
        generated = torch.cat([generated, logits.argmax(1, keepdim=True)], dim=1)
    with torch.no_grad():
        expected = model(generated[:, -field - 1 : -1].contiguous(), condition)
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)
    assert generated.shape == (1, field + 16)
    assert losses[-1] < 0.75 * losses[0]


if __name__ == "__main__":
    main()
