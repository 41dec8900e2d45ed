"""Keyword spotting: log spectra on the host, normalised and read by a projected LSTM on the IPU."""

import torch
from program_kit import Items, WithLoss, accuracy, check_learned, stacked, train
from torch import nn

import poptorch

SAMPLES, FFT, KEYWORDS = 640, 64, 3


class Spotter(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.conv = nn.InstanceNorm2d(1, affine=True), nn.Conv2d(1, 2, 3, stride=2)
        self.rnn = nn.LSTM(2 * (FFT // 4), 24, proj_size=12, batch_first=True)
        self.out = nn.Linear(12, KEYWORDS)

    def forward(self, spectra):
        x = self.conv(self.norm(spectra.unsqueeze(1))).relu_()
        _, (last, _) = self.rnn(x.permute(0, 3, 1, 2).flatten(2))
        return self.out(last[-1])


def keyword(index, generator):
    """A tone that rises, falls or stays, as the logarithm of its short-time spectra."""
    label = index % KEYWORDS
    pitch = 0.6 + torch.linspace(-0.4, 0.4, SAMPLES) * (1, -1, 0)[label]
    wave = torch.sin(torch.cumsum(pitch, 0)) + 0.1 * torch.randn(SAMPLES, generator=generator)
    spectrum = torch.stft(wave, FFT, window=torch.hann_window(FFT), return_complex=True)
    return torch.log(spectrum.abs() + 1e-3), label


torch.manual_seed(0)
model = WithLoss(Spotter(), nn.CrossEntropyLoss()).train()
opts = poptorch.Options().deviceIterations(2)
loader = poptorch.DataLoader(opts, Items(192, keyword), batch_size=8, shuffle=True)
training = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.02))
check_learned(train(training, loader, epochs=4), 0.4)
training.destroy()
spectra, labels = stacked(Items(30, keyword, seed=1000)[i] for i in range(30))
assert accuracy(poptorch.inferenceModel(model.eval())(spectra), labels) > 0.8
