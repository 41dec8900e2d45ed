"""FastPitch-like text to speech: durations per symbol, expanded to the frames of a mel spectrogram."""

import torch
from program_kit import check_learned, inferred, train
from torch import nn
from torch.nn import functional as F

import poptorch

TEXT, FRAMES, MELS, SYMBOLS, DIM = 8, 24, 6, 12, 32
SOUNDS = torch.randn(SYMBOLS, MELS, generator=torch.Generator().manual_seed(9))


class FFTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention, self.norm = nn.MultiheadAttention(DIM, 2, batch_first=True), nn.LayerNorm(DIM)
        self.conv = nn.Sequential(nn.Conv1d(DIM, 2 * DIM, 3, padding=1), nn.ReLU(), nn.Conv1d(2 * DIM, DIM, 1))

    def forward(self, x, mask):
        attended, _ = self.attention(x, x, x, key_padding_mask=~mask.squeeze(-1).bool(), need_weights=False)
        x = (x + attended) * mask
        return self.norm(x + self.conv(x.transpose(1, 2)).transpose(1, 2)) * mask


class FastPitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.proj = nn.Embedding(SYMBOLS, DIM, padding_idx=0), nn.Linear(DIM, MELS)
        self.encoder, self.decoder, self.duration = FFTBlock(), FFTBlock(), nn.Linear(DIM, 1)

    def forward(self, text, durations, mel=None):
        mask = (text != 0).unsqueeze(-1).float()
        x = self.encoder(self.symbols(text), mask)
        ends, frames = torch.cumsum(durations, dim=1), torch.arange(FRAMES)[None, :, None]
        starts = F.pad(ends[:, :-1], (1, 0))
        select = ((frames >= starts[:, None, :]) & (frames < ends[:, None, :])).to(x.dtype)
        frame_mask = (frames < ends[:, None, -1:].clamp(max=FRAMES)).float()
        out = self.proj(self.decoder(poptorch.nop(torch.matmul(select, x)), frame_mask)) * frame_mask
        if mel is None:
            return out
        mel_loss = (F.mse_loss(out, mel, reduction="none") * frame_mask).sum() / (frame_mask.sum() * MELS)
        duration_loss = F.mse_loss((self.duration(x) * mask).squeeze(-1), torch.log(durations + 1))
        return out, poptorch.identity_loss(mel_loss + 0.1 * duration_loss, reduction="none")


def batch(count):
    """Each symbol lasts one to three frames, which show its sound."""
    text = torch.randint(1, SYMBOLS, (count, TEXT)) * (torch.arange(TEXT) < torch.randint(4, TEXT + 1, (count, 1)))
    durations = torch.where(text > 0, text % 3 + 1, 0)
    frames = [torch.repeat_interleave(SOUNDS[row], times, dim=0) for row, times in zip(text, durations)]
    return text, durations, torch.stack([F.pad(sound, (0, 0, 0, FRAMES - len(sound))) for sound in frames])


torch.manual_seed(0)
model = FastPitch()
opts = poptorch.Options()
opts.Training.gradientAccumulation(2)
opts.Precision.enableFloatingPointExceptions(False)
training = poptorch.trainingModel(model, opts, poptorch.optim.LAMB(model.parameters(), lr=2e-2))
check_learned(train(training, (batch(16) for _ in range(40))), 0.6)
training.detachFromDevice()
assert inferred(model, *batch(8)[:2], tolerance=1e-3).shape == (8, FRAMES, MELS)
