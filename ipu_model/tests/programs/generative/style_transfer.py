"""Neural style transfer: the picture is the only parameter; hooks collect the features of a frozen network."""

import torch
import torchvision
from program_kit import check_learned
from torch import nn

import poptorch

SIZE = 32
STYLE_LAYERS, CONTENT_LAYERS = ("0", "5"), ("7",)


class FeatureExtractor(nn.Module):
    """Runs the first layers of VGG and remembers the outputs of the named ones."""

    def __init__(self, layers):
        super().__init__()
        vgg = torchvision.models.vgg11(weights=None).features[:8].requires_grad_(False)
        for i, layer in enumerate(vgg):
            if isinstance(layer, nn.ReLU):
                vgg[i] = nn.ReLU(inplace=False)
        self.vgg, self.outputs = vgg.eval(), {}
        for name in layers:
            self.vgg.get_submodule(name).register_forward_hook(self.remember(name))

    def remember(self, name):
        def hook(module, inputs, output):
            self.outputs[name] = output

        return hook

    def forward(self, x):
        self.outputs.clear()
        self.vgg(x)
        return dict(self.outputs)


def gram(x):
    _, channels, height, width = x.shape
    flat = x.view(channels, height * width)
    return flat @ flat.t() / (channels * height * width)


class StyleTransfer(nn.Module):
    def __init__(self, content, style):
        super().__init__()
        self.extractor = FeatureExtractor(STYLE_LAYERS + CONTENT_LAYERS)
        with torch.no_grad():
            content_features, style_features = self.extractor(content), self.extractor(style)
        for name in CONTENT_LAYERS:
            self.register_buffer(f"content_{name}", content_features[name].clone())
        for name in STYLE_LAYERS:
            self.register_buffer(f"style_{name}", gram(style_features[name]).clone())
        self.picture = nn.Parameter(content.clone() + 0.1 * torch.randn_like(content))

    def forward(self):
        features = self.extractor(torch.clamp(self.picture, -2, 2))
        content = sum(nn.functional.mse_loss(features[n], getattr(self, f"content_{n}")) for n in CONTENT_LAYERS)
        style = sum(nn.functional.mse_loss(gram(features[n]), getattr(self, f"style_{n}")) for n in STYLE_LAYERS)
        variation = (self.picture[..., 1:] - self.picture[..., :-1]).abs().mean()
        loss = content + 1e3 * style + 0.01 * variation
        return content, style, poptorch.identity_loss(loss, reduction="none")


torch.manual_seed(0)
ramp = torch.linspace(-1, 1, SIZE)
content = ramp.view(1, 1, -1, 1).expand(1, 3, SIZE, SIZE).contiguous()
style = torch.sin(8 * ramp).view(1, 1, 1, -1).expand(1, 3, SIZE, SIZE).contiguous()
model = StyleTransfer(content, style)
start = model.picture.detach().clone()
opts = poptorch.Options().deviceIterations(5).outputMode(poptorch.OutputMode.Final)
training_model = poptorch.trainingModel(model, opts, poptorch.optim.Adam([model.picture], lr=0.05))
check_learned([training_model()[-1].item() for _ in range(10)], 0.8)
picture = model.picture.detach().clone()
training_model.destroy()
assert not torch.equal(picture, start)
assert torch.isfinite(picture).all()
