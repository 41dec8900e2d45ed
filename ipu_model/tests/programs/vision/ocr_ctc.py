"""Read lines of digits: a CRNN trained with CTC, and beam search decoding on the device."""

import torch
from program_kit import Items, check_learned, stacked, train
from torch import nn

import poptorch

BLANK, SYMBOLS, WIDTH, HEIGHT, GLYPHS, HIDDEN = 0, 4, 6, 8, 3, 24
FONT = torch.rand(SYMBOLS + 1, HEIGHT, WIDTH - 1, generator=torch.Generator().manual_seed(1234)) > 0.5


def line(index, generator):
    text = torch.randint(1, SYMBOLS + 1, (GLYPHS,), generator=generator)
    image = torch.zeros(1, HEIGHT, GLYPHS * WIDTH)
    for i, symbol in enumerate(text):
        image[0, :, i * WIDTH : (i + 1) * WIDTH - 1] = FONT[symbol].float()
    return image + 0.1 * torch.randn(image.shape, generator=generator), text.int(), torch.tensor(GLYPHS).int()


class CRNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.features = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2))
        self.rnn = nn.LSTM(16 * (HEIGHT // 2), HIDDEN, batch_first=True)
        self.output, self.ctc = nn.Linear(HIDDEN, SYMBOLS + 1), nn.CTCLoss(blank=BLANK, reduction="mean")

    def forward(self, images, targets=None, target_lengths=None, lengths=None):
        x, _ = self.rnn(self.features(images).permute(0, 3, 1, 2).flatten(2))
        log_probs = torch.log_softmax(self.output(x), dim=-1).transpose(0, 1)
        if targets is None:
            return poptorch.ctc_beam_search_decoder(log_probs, lengths, blank=BLANK, beam_width=8, top_paths=2)
        input_lengths = torch.full((images.shape[0],), log_probs.shape[0], dtype=torch.int32)
        return log_probs, self.ctc(log_probs, targets, input_lengths, target_lengths)


torch.manual_seed(0)
model = CRNN().train()
opts = poptorch.Options().deviceIterations(2).outputMode(poptorch.OutputMode.EveryN, 2)
loader = poptorch.DataLoader(opts, Items(256, line), 16, True, num_workers=0)
training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam(model.parameters(), lr=0.02))
check_learned(train(training_model, loader, epochs=6), 0.3)
training_model.detachFromDevice()

decoder = poptorch.inferenceModel(model.eval())
images, truth, _ = stacked(Items(16, line, seed=5000)[i] for i in range(16))
probs, lengths, paths = decoder(images, None, None, torch.full((16,), GLYPHS * WIDTH // 2, dtype=torch.int32))
assert probs.shape == lengths.shape == (16, 2)
assert paths.shape[:2] == (16, 2)
assert sum(paths[i, 0, : lengths[i, 0]].tolist() == truth[i].tolist() for i in range(16)) >= 11
