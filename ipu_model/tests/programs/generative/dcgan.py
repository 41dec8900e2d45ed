"""DCGAN with two training models; the weights of the frozen half are copied between the steps."""

import torch
from program_kit import Over, check_close
from torch import nn
from torch.nn.functional import binary_cross_entropy_with_logits as bce

import poptorch

NZ, WIDTH, STEPS = 8, 8, 60


def weights_init(m):
    classname = m.__class__.__name__
    if classname.find("Conv") != -1:
        nn.init.normal_(m.weight.data, 0.0, 0.05)
    elif classname.find("BatchNorm") != -1:
        nn.init.normal_(m.weight.data, 1.0, 0.02)
        nn.init.constant_(m.bias.data, 0)


def generator():
    first, second = nn.ConvTranspose2d(NZ, 16, 4, 1, 0, bias=False), nn.ConvTranspose2d(16, 8, 4, 2, 1, bias=False)
    layers = first, nn.BatchNorm2d(16), nn.ReLU(True), second, nn.BatchNorm2d(8), nn.ReLU(True)
    return nn.Sequential(*layers, nn.ConvTranspose2d(8, 1, 4, 2, 1, bias=False), nn.Tanh()).apply(weights_init)


def discriminator():
    first, second = nn.Conv2d(1, 8, 4, 2, 1, bias=False), nn.Conv2d(8, 16, 4, 2, 1, bias=False)
    layers = first, nn.LeakyReLU(0.2, inplace=True), second, nn.BatchNorm2d(16), nn.LeakyReLU(0.2, inplace=True)
    return nn.Sequential(*layers, nn.Conv2d(16, 1, 4, 1, 0, bias=False), nn.Flatten(0)).apply(weights_init)


class DiscriminatorStep(Over):
    def forward(self, real, fake):
        on_real, on_fake = self.network(real), self.network(fake)
        error = bce(on_real, torch.full_like(on_real, 0.9)) + bce(on_fake, torch.zeros_like(on_fake))
        return torch.sigmoid(on_real).mean(), torch.sigmoid(on_fake).mean(), poptorch.identity_loss(error, "mean")


class GeneratorStep(Over):
    def __init__(self, generator, discriminator):
        super().__init__(generator)
        self.discriminator = discriminator.requires_grad_(False)

    def forward(self, noise):
        fake = self.network(noise)
        score = self.discriminator(fake)
        return fake, nn.BCEWithLogitsLoss()(score, torch.ones_like(score))


torch.manual_seed(999)
net_g, net_d, frozen_d = generator(), discriminator(), discriminator()
frozen_d.load_state_dict(net_d.state_dict())
opts = poptorch.Options()
step_d, step_g = DiscriminatorStep(net_d), GeneratorStep(net_g, frozen_d)
optimizer_d = poptorch.optim.Adam(step_d.parameters(), lr=1e-3, betas=(0.5, 0.999))
optimizer_g = poptorch.optim.Adam([p for p in step_g.parameters() if p.requires_grad], lr=1e-2, betas=(0.5, 0.999))
train_d = poptorch.trainingModel(step_d, options=opts.clone(), optimizer=optimizer_d)
train_g = poptorch.trainingModel(step_g, options=opts.clone(), optimizer=optimizer_g)

pattern = torch.sign(torch.sin(torch.arange(16.0))).expand(16, 16)
fake, similarity = torch.zeros(8, 1, 16, 16), []
for i in range(STEPS):
    _, _, error_d = train_d((pattern + 0.1 * torch.randn(8, 1, 16, 16)).clamp(-1, 1), fake.detach())
    train_d.copyWeightsToHost()
    if i:
        train_g.copyWeightsToHost()
    frozen_d.load_state_dict(net_d.state_dict())
    if i:
        train_g.copyWeightsToDevice()
    fake, error_g = train_g(torch.randn(8, NZ, 1, 1))
    assert error_d.isfinite() and error_g.isfinite()
    similarity.append((fake * pattern).mean().item())
train_g.copyWeightsToHost()
check_close([p.detach() for p in frozen_d.parameters()], [p.detach() for p in net_d.parameters()])
assert fake.shape == (8, 1, 16, 16)
assert max(similarity[-5:]) > similarity[0] + 0.1, similarity
