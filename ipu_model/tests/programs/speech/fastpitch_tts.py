"""FastPitch-like text to speech: durations and pitch per symbol, expanded to frames of a mel spectrogram."""

import argparse
import contextlib
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

MAX_TEXT, MAX_FRAMES, MELS, SYMBOLS = 10, 40, 8, 20


class ConvReLUNorm(nn.Module):
    def __init__(self, in_channels, out_channels, kernel_size=3, dropout=0.0):
        super().__init__()
        self.conv = nn.Conv1d(in_channels, out_channels, kernel_size=kernel_size, padding=kernel_size // 2)
        self.norm = nn.LayerNorm(out_channels)
        self.dropout = nn.Dropout(dropout)

    def forward(self, signal):
        out = F.relu(self.conv(signal))
        return self.dropout(self.norm(out.transpose(1, 2)).transpose(1, 2))


class TemporalPredictor(nn.Module):
    def __init__(self, size, filter_size=32, layers=2):
        super().__init__()
        self.layers = nn.Sequential(
            *[ConvReLUNorm(size if i == 0 else filter_size, filter_size) for i in range(layers)]
        )
        self.fc = nn.Linear(filter_size, 1)

    def forward(self, x, mask):
        out = self.layers((x * mask).transpose(1, 2)).transpose(1, 2)
        return (self.fc(out) * mask).squeeze(-1)


class FFTBlock(nn.Module):
    def __init__(self, dim, heads=2):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.conv1, self.conv2 = nn.Conv1d(dim, 2 * dim, 3, padding=1), nn.Conv1d(2 * dim, dim, 1)

    def forward(self, x, mask):
        attended, _ = self.attention(x, x, x, key_padding_mask=~mask.squeeze(-1).bool(), need_weights=False)
        x = self.norm1(x + attended) * mask
        hidden = self.conv2(F.relu(self.conv1(x.transpose(1, 2)))).transpose(1, 2)
        return self.norm2(x + hidden) * mask


def regulate_len(durations, encoded, max_frames):
    """Repeat every symbol for its frames, by a matrix product: the shape stays static."""
    ends = torch.cumsum(durations, dim=1)
    starts = F.pad(ends[:, :-1], (1, 0))
    frames = torch.arange(max_frames)[None, :, None]
    select = ((frames >= starts[:, None, :]) & (frames < ends[:, None, :])).to(encoded.dtype)
    lengths = ends[:, -1].clamp(max=max_frames)
    return torch.matmul(select, encoded), lengths


class FastPitch(nn.Module):
    def __init__(self, dim=32):
        super().__init__()
        self.symbols = nn.Embedding(SYMBOLS, dim, padding_idx=0)
        self.encoder = nn.ModuleList(FFTBlock(dim) for _ in range(2))
        self.duration_predictor = TemporalPredictor(dim)
        self.pitch_predictor = TemporalPredictor(dim)
        self.pitch_emb = nn.Conv1d(1, dim, kernel_size=3, padding=1)
        self.decoder = nn.ModuleList(FFTBlock(dim) for _ in range(2))
        self.proj = nn.Linear(dim, MELS)

    def forward(self, text, durations=None, pitch=None):
        mask = (text != 0).unsqueeze(-1).float()
        x = self.symbols(text)
        for block in self.encoder:
            x = block(x, mask)
        log_durations = self.duration_predictor(x, mask)
        pitch_predicted = self.pitch_predictor(x, mask)
        if durations is None:
            durations = torch.round(torch.clamp(torch.exp(log_durations) - 1, min=0)) * mask.squeeze(-1)
            pitch = pitch_predicted
        x = x + self.pitch_emb(pitch.unsqueeze(1)).transpose(1, 2)
        x, lengths = regulate_len(durations, x, MAX_FRAMES)
        poptorch.nop(x)
        frame_mask = (torch.arange(MAX_FRAMES)[None, :] < lengths[:, None]).unsqueeze(-1).float()
        for block in self.decoder:
            x = block(x, frame_mask)
        return self.proj(x) * frame_mask, lengths, log_durations, pitch_predicted


class FastPitchLoss(nn.Module):
    def __init__(self, dur_weight=0.1, pitch_weight=0.1):
        super().__init__()
        self.dur_weight, self.pitch_weight = dur_weight, pitch_weight

    def forward(self, outputs, mel, durations, pitch, text):
        mel_out, lengths, log_durations, pitch_predicted = outputs
        text_mask = (text != 0).float()
        frame_mask = (torch.arange(MAX_FRAMES)[None, :] < lengths[:, None]).unsqueeze(-1).float()
        mel_loss = (F.mse_loss(mel_out, mel, reduction="none") * frame_mask).sum() / (frame_mask.sum() * MELS)
        dur_loss = (F.mse_loss(log_durations, torch.log(durations + 1), reduction="none") * text_mask).sum()
        pitch_loss = (F.mse_loss(pitch_predicted, pitch, reduction="none") * text_mask).sum()
        meta = {
            "mel": mel_loss,
            "duration": dur_loss / text_mask.sum(),
            "pitch": pitch_loss / text_mask.sum(),
        }
        total = meta["mel"] + self.dur_weight * meta["duration"] + self.pitch_weight * meta["pitch"]
        return poptorch.identity_loss(total, reduction="none"), meta


class TrainingWrapper(nn.Module):
    def __init__(self, model, criterion):
        super().__init__()
        self.model, self.criterion = model, criterion

    def forward(self, batch):
        outputs = self.model(batch["text"], batch["durations"], batch["pitch"])
        loss, meta = self.criterion(outputs, batch["mel"], batch["durations"], batch["pitch"], batch["text"])
        return {"loss": loss, "meta": meta, "mel": outputs[0]}


class Speech(torch.utils.data.Dataset):
    def __init__(self, size):
        g = torch.Generator().manual_seed(0)
        self.timbre = torch.randn(SYMBOLS, MELS, generator=g)
        self.size = size

    def __len__(self):
        return self.size

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        n = int(torch.randint(4, MAX_TEXT + 1, (1,), generator=g))
        text = torch.zeros(MAX_TEXT, dtype=torch.long)
        text[:n] = torch.randint(1, SYMBOLS, (n,), generator=g)
        durations = (text % 3 + 1).float() * (text != 0)
        pitch = torch.sin(text.float()) * (text != 0)
        mel = torch.zeros(MAX_FRAMES, MELS)
        spoken = torch.repeat_interleave(self.timbre[text] * (1 + 0.5 * pitch[:, None]), durations.long(), dim=0)
        mel[: len(spoken)] = spoken
        return {"text": text, "durations": durations, "pitch": pitch, "mel": mel}


@contextlib.contextmanager
def timed(what):
    start = time.perf_counter()
    yield
    print(f"{what}: {time.perf_counter() - start:.2f} s")


def main():
    parser = argparse.ArgumentParser(description="FastPitch training")
    parser.add_argument("-e", "--epochs", type=int, default=8)
    parser.add_argument("-bs", "--batch-size", type=int, default=8)
    parser.add_argument("--grad-clip", action="store_true", help="not used on IPU")
    args, _ = parser.parse_known_args()

    torch.manual_seed(1)
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(2)
    opts.Precision.enableFloatingPointExceptions(False)
    loader = poptorch.DataLoader(opts, Speech(128), batch_size=args.batch_size, shuffle=True, drop_last=True)
    model = FastPitch()
    wrapper = TrainingWrapper(model, FastPitchLoss())
    optimizer = poptorch.optim.LAMB(wrapper.parameters(), lr=0.02, betas=(0.9, 0.98), eps=1e-9, weight_decay=1e-6)
    training = poptorch.trainingModel(wrapper, opts, optimizer)

    with timed("compilation"):
        training.compile(next(iter(loader)))
    history = []
    for epoch in range(args.epochs):
        total = 0.0
        for batch in loader:
            result = training(batch)
            total += result["loss"].item()
        history.append(total / len(loader))
        meta = ", ".join(f"{key} {value.item():.3f}" for key, value in result["meta"].items())
        print(f"epoch {epoch}: loss {history[-1]:.4f} ({meta})")
    training.destroy()

    model.eval()
    inference = poptorch.inferenceModel(model)
    item = Speech(4)[2]
    with timed("synthesis"):
        mel, length, log_durations, _ = inference(item["text"].unsqueeze(0))
    print(f"{int(length)} frames; the truth is {int(item['durations'].sum())}")
    assert mel.shape == (1, MAX_FRAMES, MELS)
    assert abs(int(length) - int(item["durations"].sum())) <= 5
    assert history[-1] < 0.5 * history[0]


if __name__ == "__main__":
    main()
