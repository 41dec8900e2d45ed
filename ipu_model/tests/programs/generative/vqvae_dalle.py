"""Text to image in two stages: a VQ-VAE makes tokens of pictures, a decoder-only transformer writes them."""

import torch
from program_kit import check_learned, train
from torch import nn
from torch.nn import functional as F

import poptorch

CODES, CODE_DIM, GRID, WIDTH, DIM = 12, 8, 4, 16, 32


class VQVAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, WIDTH, 4, 2, 1), nn.ReLU(), nn.Conv2d(WIDTH, CODE_DIM, 4, 2, 1))
        layers = nn.ConvTranspose2d(CODE_DIM, WIDTH, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(WIDTH, 1, 4, 2, 1)
        self.decoder, self.codebook = nn.Sequential(*layers), nn.Embedding(CODES, CODE_DIM)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)

    def quantize(self, z):
        flat, codes = z.permute(0, 2, 3, 1).reshape(-1, CODE_DIM), self.codebook.weight
        distance = flat.pow(2).sum(1, keepdim=True) + codes.pow(2).sum(1) - 2 * flat @ codes.t()
        indices = distance.argmin(dim=1)
        quantized = self.codebook(indices).view(z.shape[0], GRID, GRID, -1).permute(0, 3, 1, 2)
        loss = F.mse_loss(quantized, z.detach()) + 0.25 * F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), indices.view(z.shape[0], -1), loss

    def forward(self, images):
        quantized, indices, loss = self.quantize(self.encoder(images))
        reconstruction = self.decoder(quantized)
        if not self.training:
            return indices, reconstruction
        return reconstruction, poptorch.identity_loss(F.mse_loss(reconstruction, images) + loss, reduction="none")


class TokenTransformer(nn.Module):
    """Predicts each picture token from the caption and the tokens before it."""

    def __init__(self):
        super().__init__()
        self.text, self.tokens, self.positions = (nn.Embedding(n, DIM) for n in (2, CODES, GRID**2))
        layers = (nn.TransformerEncoderLayer(DIM, 2, 2 * DIM, dropout=0.0, batch_first=True) for _ in range(2))
        self.layers, self.head = nn.ModuleList(layers), nn.Linear(DIM, CODES)
        self.register_buffer("causal", torch.triu(torch.full((GRID**2, GRID**2), -1e4), diagonal=1))

    def forward(self, caption, tokens, targets=None):
        start = self.text(caption).unsqueeze(1)
        x = torch.cat([start, self.tokens(tokens[:, :-1])], dim=1) + self.positions.weight
        for layer in self.layers:
            x = layer(x, src_mask=self.causal)
        logits = self.head(x)
        if targets is None:
            return logits
        return logits, F.cross_entropy(logits.view(-1, CODES), targets.reshape(-1).long())


def pictures(count):
    """A bar in each picture: the caption tells whether it stands or lies."""
    caption, images = torch.arange(count) % 2, torch.zeros(count, 1, 16, 16)
    for image, kind in zip(images, caption.tolist()):
        offset = int(torch.randint(0, 8, ()))
        (image.mT if kind else image)[0, offset : offset + 6] = 1
    return caption, images


def captioned():
    caption, images = pictures(4 * 16)
    tokens, _ = tokenizer(images)
    return caption, tokens, tokens.clone()


torch.manual_seed(0)
vae = VQVAE().train()
trainer = poptorch.trainingModel(vae, poptorch.Options(), poptorch.optim.Adam(vae.parameters(), lr=5e-3))
check_learned(train(trainer, (pictures(16)[1:] for _ in range(80))), 0.8)
trainer.destroy()

tokenizer, transformer = poptorch.inferenceModel(vae.eval()), TokenTransformer()
opts = poptorch.Options()
opts.Training.gradientAccumulation(4)
opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
transformer.layers[1] = poptorch.BeginBlock(transformer.layers[1], ipu_id=1)
trainer = poptorch.trainingModel(transformer, opts, poptorch.optim.AdamW(transformer.parameters(), lr=3e-3))
check_learned(train(trainer, (captioned() for _ in range(30))), 0.8)
trainer.detachFromDevice()

# Without the blocks, the small model that writes the tokens fits on one IPU.
poptorch.removeBlocks(transformer)
writer, tokens = poptorch.inferenceModel(transformer.eval()), torch.zeros(4, GRID**2, dtype=torch.long)
for position in range(GRID**2):
    logits = writer(torch.tensor([0, 1, 0, 1]), tokens)[:, position]
    tokens[:, position] = torch.multinomial(torch.softmax(logits / 0.7, dim=-1), 1).squeeze(1)
assert vae.decoder(vae.codebook(tokens).view(4, GRID, GRID, -1).permute(0, 3, 1, 2)).shape == (4, 1, 16, 16)
