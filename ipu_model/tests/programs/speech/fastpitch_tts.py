"""FastPitch-like text to speech: durations per symbol, expanded to the frames of a mel spectrogram."""

import torch
from program_kit import check_close, check_learned, train
from torch import nn
from torch.nn import functional as F

import poptorch

TEXT, FRAMES, MELS, SYMBOLS, DIM = 8, 24, 6, 12, 32


class FFTBlock(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(DIM, 2, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.conv1, self.conv2 = nn.Conv1d(DIM, 2 * DIM, 3, padding=1), nn.Conv1d(2 * DIM, DIM, 1)

    def forward(self, x, mask):
        attended, _ = self.attention(x, x, x, key_padding_mask=~mask.squeeze(-1).bool(), need_weights=False)
        x = self.norm1(x + attended) * mask
        return self.norm2(x + self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)) * mask


class FastPitch(nn.Module):
    def __init__(self):
        super().__init__()
        self.symbols, self.proj = nn.Embedding(SYMBOLS, DIM, padding_idx=0), nn.Linear(DIM, MELS)
        self.encoder, self.decoder, self.duration = FFTBlock(), FFTBlock(), nn.Linear(DIM, 1)

    def forward(self, text, durations, mel=None):
        mask = (text != 0).unsqueeze(-1).float()
        x = self.encoder(self.symbols(text), mask)
        log_durations = (self.duration(x) * mask).squeeze(-1)
        ends = torch.cumsum(durations, dim=1)
        starts = F.pad(ends[:, :-1], (1, 0))
        frames = torch.arange(FRAMES)[None, :, None]
        select = ((frames >= starts[:, None, :]) & (frames < ends[:, None, :])).to(x.dtype)
        lengths = ends[:, -1].clamp(max=FRAMES)
        frame_mask = (torch.arange(FRAMES)[None, :] < lengths[:, None]).unsqueeze(-1).float()
        out = self.proj(self.decoder(poptorch.nop(torch.matmul(select, x)), frame_mask)) * frame_mask
        if mel is None:
            return out, lengths
        mel_loss = (F.mse_loss(out, mel, reduction="none") * frame_mask).sum() / (frame_mask.sum() * MELS)
        duration_loss = F.mse_loss(log_durations, torch.log(durations + 1))
        return out, poptorch.identity_loss(mel_loss + 0.1 * duration_loss, reduction="none")


SOUNDS = torch.randn(SYMBOLS, MELS, generator=torch.Generator().manual_seed(9))


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
text, durations, _ = batch(8)
out, lengths = poptorch.inferenceModel(model.eval())(text, durations)
check_close(out, FastPitch.forward(model, text, durations)[0], 1e-3)
assert torch.equal(lengths.long(), durations.sum(1))
