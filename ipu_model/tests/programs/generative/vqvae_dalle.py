"""Text to image in two stages: a VQ-VAE makes tokens of pictures, a decoder-only transformer writes them."""

from types import SimpleNamespace

import torch
import torch.nn as nn
import torch.nn.functional as F

import poptorch

CODES, CODE_DIM, GRID, TEXT = 12, 8, 4, 4


class VectorQuantizer(nn.Module):
    def __init__(self, codes, dim, commitment=0.25):
        super().__init__()
        self.codebook = nn.Embedding(codes, dim)
        nn.init.uniform_(self.codebook.weight, -0.5, 0.5)
        self.commitment = commitment

    def forward(self, z):
        flat = z.permute(0, 2, 3, 1).reshape(-1, z.shape[1])
        distance = (
            flat.pow(2).sum(1, keepdim=True) + self.codebook.weight.pow(2).sum(1) - 2 * flat @ self.codebook.weight.t()
        )
        indices = distance.argmin(dim=1)
        quantized = self.codebook(indices).view(z.shape[0], GRID, GRID, -1).permute(0, 3, 1, 2)
        loss = F.mse_loss(quantized, z.detach()) + self.commitment * F.mse_loss(z, quantized.detach())
        return z + (quantized - z).detach(), indices.view(z.shape[0], -1), loss


class VQVAE(nn.Module):
    def __init__(self, width=16):
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(1, width, 4, 2, 1), nn.ReLU(), nn.Conv2d(width, CODE_DIM, 4, 2, 1))
        self.quantizer = VectorQuantizer(CODES, CODE_DIM)
        self.decoder = nn.Sequential(
            nn.ConvTranspose2d(CODE_DIM, width, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(width, 1, 4, 2, 1)
        )

    def forward(self, images):
        quantized, indices, vq_loss = self.quantizer(self.encoder(images))
        reconstruction = self.decoder(quantized)
        if not self.training:
            return indices, reconstruction
        loss = F.mse_loss(reconstruction, images) + vq_loss
        return reconstruction, poptorch.identity_loss(loss, reduction="none")


class TokenTransformer(nn.Module):
    """Predicts each picture token from the caption and the tokens before it."""

    def __init__(self, dim=32, layers=2, captions=2):
        super().__init__()
        self.text = nn.Embedding(captions, dim)
        self.tokens, self.positions = nn.Embedding(CODES, dim), nn.Embedding(GRID**2, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(dim, 2, 2 * dim, dropout=0.0, batch_first=True) for _ in range(layers)
        )
        self.head = nn.Linear(dim, CODES)
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
    caption = torch.arange(count) % 2
    images = torch.zeros(count, 1, 16, 16)
    for image, kind in zip(images, caption.tolist()):
        offset = int(torch.randint(0, 8, ()))
        if kind:
            image[0, :, offset : offset + 6] = 1
        else:
            image[0, offset : offset + 6] = 1
    return caption, images


@torch.no_grad()
def generate(model, caption):
    tokens = torch.zeros(len(caption), GRID**2, dtype=torch.long)
    for position in range(GRID**2):
        logits = model(caption, tokens)[:, position]
        tokens[:, position] = torch.multinomial(torch.softmax(logits / 0.7, dim=-1), 1).squeeze(1)
    return tokens


def main():
    args = SimpleNamespace(vae_steps=80, transformer_steps=30, batch_size=16)
    torch.manual_seed(0)

    vae = VQVAE().train()
    trainer = poptorch.trainingModel(vae, poptorch.Options(), poptorch.optim.Adam(vae.parameters(), lr=5e-3))
    losses = [trainer(pictures(args.batch_size)[1])[1].item() for _ in range(args.vae_steps)]
    print(f"VQ-VAE loss {losses[0]:.3f} -> {losses[-1]:.3f}")
    trainer.destroy()

    tokenizer = poptorch.inferenceModel(vae.eval())
    transformer = TokenTransformer()
    opts = poptorch.Options()
    opts.Training.gradientAccumulation(4)
    opts.setExecutionStrategy(poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement))
    transformer.layers[1] = poptorch.BeginBlock(transformer.layers[1], ipu_id=1)
    trainer = poptorch.trainingModel(transformer, opts, poptorch.optim.AdamW(transformer.parameters(), lr=3e-3))
    token_losses = []
    for _ in range(args.transformer_steps):
        caption, images = pictures(4 * args.batch_size)
        tokens, _ = tokenizer(images)
        token_losses.append(trainer(caption, tokens, tokens.clone())[1].item())
    print(f"transformer loss {token_losses[0]:.3f} -> {token_losses[-1]:.3f}")
    trainer.detachFromDevice()

    writer = poptorch.inferenceModel(poptorch_free(transformer).eval())
    tokens = generate(writer, torch.tensor([0, 1, 0, 1]))
    drawn = vae.decoder(vae.quantizer.codebook(tokens).view(4, GRID, GRID, -1).permute(0, 3, 1, 2))
    assert drawn.shape == (4, 1, 16, 16)
    assert int(tokens.max()) < CODES
    assert losses[-1] < 0.8 * losses[0]
    assert token_losses[-1] < 0.8 * token_losses[0]


def poptorch_free(model):
    """Take the blocks away: the small model that writes the tokens fits on one IPU."""
    poptorch.removeBlocks(model)
    return model


if __name__ == "__main__":
    main()
