# %% [markdown]
# # 8-bit I/O: send bytes, normalise on the device
#
# *Plan 45 minutes, 14 of them for the exercises; the notebook itself runs in under one. Before it:
# lesson 03.*
#
# On the ladder of these lessons, this step is the largest: from 45 to 13 seconds an epoch. "8 bits are
# faster" is the usual explanation, and it is wrong. You will
#
# * count the bytes that a call sends,
# * normalise on the device,
# * compare the result with host normalisation, and hunt the bugs,
# * measure the host's work on your machine,
# * take the step apart: host, stream, device,
# * train with bytes.

# %%
import torch
import torchvision
from torch import nn
from torchvision import transforms

import poptorch
from ipu_course import engine, figures, ladder, loops, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.eight_bit_io.checks import check_minus_one_to_one, check_stream_bound, check_who_gains
from ipu_course.lessons.eight_bit_io.host_cost import milliseconds_per_image
from ipu_course.lessons.eight_bit_io.explorer import explore_io
from ipu_course.lessons.eight_bit_io.call_parts_figure import call_parts_figure
from ipu_course.lesson import Lesson
from ipu_course.views.call import call_parts

# %% [markdown]
# ## Count the bytes
#
# **I/O** means what travels between the host (the computer that runs Python) and the IPUs. The IPU fetches
# the images of each micro-batch in a transfer called a **stream**. Without further options the IPU does not
# compute meanwhile, so each byte costs time.
#
# A pixel is a whole number from 0 to 255: one byte, called `uint8`. As a half-precision number (`fp16`, lesson
# 01) it takes two, in `fp32` four. The hands-on enlarges its images to 64 x 64 and takes 64 x 8 x 4 of them in
# one call (micro-batch x gradient accumulation x device iterations).

# %%
lesson = Lesson("04")
torch.set_num_threads(1)

images_per_call = 64 * 8 * 4
rows = []
for name, size in {"fp32": 4, "fp16": 2, "uint8": 1}.items():
    image = 3 * 64 * 64 * size
    rows.append({"type": name, "bytes an image": f"{image:,}", "KiB a micro-batch": 64 * image // 1024,
                 "MB a call": f"{images_per_call * image / 1e6:.1f}"})
show.table(rows, index="type")

# %% [markdown]
# ## Normalise on the device
#
# A network wants normalised numbers, with a mean near 0. If the host normalises, it must send floating-point
# numbers. If it sends bytes, the first layer of the model can normalise. That is plain PyTorch; the mean and
# the deviation are *buffers*, so they move with the model. (The course's program has this module as
# `NormaliseOnDevice`.)

# %%
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as in the hands-on

class Normalise(nn.Module):
    def __init__(self, dtype, mean=MEAN, std=STD):
        super().__init__()
        self.dtype = dtype
        self.register_buffer("mean", torch.tensor(mean, dtype=dtype).view(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std, dtype=dtype).view(-1, 1, 1))

    def forward(self, images):  # [N, 3, H, W], 0 to 255
        return (images.to(self.dtype) / 255 - self.mean) / self.std

class Cast(nn.Module):
    def forward(self, images):
        return images.half()


# %% [markdown]
# Now the full size: ResNet-101 on two IPUs, three times. Only the way in differs. With fp32 the device
# just casts; with fp16 it does nothing, as in the steps before; with uint8 it normalises. The modelled programs
# are captured once; profiles with different settings follow from them.

# %%
options = poptorch.Options()
options.deviceIterations(4)
options.Training.gradientAccumulation(8)
def captured(dtype, first_layer):
    model = torchvision.models.resnet101()
    model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # from here on: the second IPU
    model = models.ClassifierWithLoss(model, first_layer).half()
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
                                     first_order_momentum_accum_type=torch.float16)
    return engine.modelled_module(model, ladder.micro_batch(dtype), options, optimizer)

programs = {"fp32": captured(torch.float32, Cast()), "fp16": captured(torch.float16, None),
            "uint8": captured(torch.uint8, Normalise(torch.float16))}

# %% [markdown]
# **Predict:** uint8 images are half as large as fp16 images. How many times faster does that make the *device*
# (stream and computation, without the host)? Write your number in place of the dots.

# %%
guess = lesson.predict("device time with fp16, divided by that with uint8", ...)

profiles = {name: program and program.profile(host=ladder.host(eight_bit_io=name == "uint8"))
            for name, program in programs.items()}
parts = {name: call_parts(profile) for name, profile in profiles.items() if profile}
guess.reveal(parts["fp16"].device / parts["uint8"].device if parts else None, "modelled")
if parts:
    figures.show(
        figures.bars_figure(list(parts), {"stream": [1000 * each.stream for each in parts.values()],
                                          "all of the device": [1000 * each.device for each in parts.values()]},
                            "milliseconds a call", "Streams shrink with the bytes (modelled)"),
        "Two bars for each type, milliseconds of one call, modelled: the stream halves from fp32 to fp16 and "
        "again to uint8, the whole device time falls by a few per cent only.")

# %% [markdown]
# The stream follows the bytes, yet it is a small part of the device's time. The device's computation even
# grows a little, because it normalises now. How can an epoch become three times shorter, then? One exercise
# first.
#
# **Exercise 1** (5 min). Bound the stream's share without any model. The hands-on published 1.88 s a call
# before this step and 1.77 calls a second after it [1]. A link to an IPU that moves at least 3 GB/s [3] is
# known. How many bytes does uint8 save in one call, against fp16? Which share of the published saving can they
# explain at most (as a number from 0 to 1)?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: saved_bytes = ...
### STARTER: share = ...
saved_bytes = images_per_call * 3 * 64 * 64 * (2 - 1)
share = (saved_bytes / 3e9) / (1.88 - 1 / 1.77)
### END SOLUTION
check_stream_bound(saved_bytes, share)

# %% [markdown] tags=["hint"]
# Per number, uint8 saves one byte. Seconds saved by the stream: bytes divided by bytes a second. A call got
# shorter by 1.88 s minus 1 / 1.77 s.

# %% [markdown] tags=["solution"]
# 25 MB at 3 GB/s are 8 ms. A call got more than 1.3 s shorter. The stream can explain less than one per
# cent; something else must explain the rest.

# %% [markdown]
# ## Compare with host normalisation
#
# Before speed comes correctness. Both ways must give the same numbers. For all 256 pixel values, the fp16
# results are equal, bit for bit, if the host rounds as the device does. If the host computes in fp32 and
# rounds once at the end, the results differ by an fp16 rounding. So do the logits of a network.

# %%
every_pixel = torch.arange(256, dtype=torch.uint8).view(1, 1, 16, 16).repeat(1, 3, 1, 1)
host_fp16 = transforms.Compose([transforms.ConvertImageDtype(torch.float16), transforms.Normalize(MEAN, STD)])
print("all pixels, same bits:", torch.equal(host_fp16(every_pixel[0]), Normalise(torch.float16)(every_pixel)[0]))

torch.manual_seed(0)
layers = [nn.Conv2d(3, 16, 3, stride=2), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 15 * 15, 10)]
pixels = colour_shapes(train=False, images=64).pixels
tidy = poptorch.Options()
tidy.showCompilationProgressBar(False)  # keeps this page tidy
host_model = poptorch.inferenceModel(nn.Sequential(*layers).half(), tidy)
from_host = host_model(Normalise(torch.float32)(pixels).half())
device_model = poptorch.inferenceModel(nn.Sequential(Normalise(torch.float16), *layers).half(), tidy)
from_device = device_model(pixels)
print("logits differ by less than 0.02:", (from_host - from_device).abs().max().item() < 0.02)
print("images with the same answer:", (from_host.argmax(1) == from_device.argmax(1)).sum().item(), "of 64")

# %% [markdown]
# ### Hunt the bugs
#
# Four suspects, all seen in real programs. One is innocent. Decide which, then run the cell. The last
# one is about labels: they are small whole numbers, too.

# %%
mean, std = MEAN[0], STD[0]
suspects = {
    "cast to fp16, then divide by 255": lambda x: (x.half() / 255 - mean) / std,
    "subtract the mean, then cast": lambda x: (x - round(255 * mean)).half() / (255 * std),
    "divide as whole numbers, then cast": lambda x: ((x // 255).half() - mean) / std,
}
some = torch.tensor([0, 100, 200, 255], dtype=torch.uint8)
right = (some.double() / 255 - mean) / std
rows = [{"way": "right", **{f"pixel {p}": f"{v:.2f}" for p, v in zip(some.tolist(), right.tolist())}}]
for name, way in suspects.items():
    values = way(some).tolist()
    rows.append({"way": name, **{f"pixel {p}": f"{v:.2f}" for p, v in zip(some.tolist(), values)}})
show.table(rows, index="way")
print("labels 9, 255 and 999 as uint8:", torch.tensor([9, 255, 999]).to(torch.uint8).tolist())

# %% [markdown]
# * **Casting first is right.** fp16 holds every whole number up to 2,048 exactly, so no pixel is lost.
# * **Arithmetic in uint8 wraps around**: 0 - 124 is 132. No error, no warning: dark pixels turn bright.
# * **Whole-number division** leaves 0 and 1.
# * **Labels** above 255 change silently. And `batch.half()` on everything makes labels fp16, which the
#   loss refuses. Send labels as they are: cast images only.
#
# **Exercise 2** (5 min). Another network wants pixels from -1 to 1 (0 becomes -1, 255 becomes 1), in fp16.
# Write a function of the uint8 images.


# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: to_range = ...
def to_range(images):
    return images.half() / 255 * 2 - 1
### END SOLUTION
check_minus_one_to_one(to_range)

# %% [markdown] tags=["hint"]
# Begin with `images.half()`. `def to_range(images): ...` or `to_range = lambda images: ...`, both work.

# %% [markdown] tags=["solution"]
# Cast first, then compute. `images.half() / 127.5 - 1` is right as well. `(images - 128) / 128` is wrong twice:
# it wraps around, and the middle of 0 and 255 is 127.5.

# %% [markdown]
# ## Measure the host's work
#
# With bytes, the host has less to *do*, not only less to send: no conversion, no normalisation. Here is
# the hands-on's transform with and without both, **measured** on your machine, in one process. Your
# numbers will differ from those of the hands-on's host, whose processor and libraries were others.

# %% tags=["nbval-ignore-output"]
to_bytes = [transforms.RandomHorizontalFlip(), transforms.Resize((64, 64)), transforms.PILToTensor()]
to_fp16 = [*to_bytes, transforms.ConvertImageDtype(torch.float16), transforms.Normalize(MEAN, STD)]
for name, steps in {"uint8": to_bytes, "fp16, normalised": to_fp16}.items():
    print(f"{name:16}: {milliseconds_per_image(transforms.Compose(steps)):.2f} ms an image, measured here")

# %% [markdown]
# ## Take the step apart
#
# The hands-on never published its host's time per image. The model therefore takes 0.80 ms (fp16) and 0.18 ms
# (uint8), **fitted** on the published epochs themselves. So the modelled epochs must come out near the
# published ones: that agreement is no proof. What the fit does not decide is the device's part; that comes from
# the model and its published trace.
#
# **Predict:** seconds an epoch with 8-bit I/O.

# %%
guess = lesson.predict("seconds an epoch with 8-bit I/O", ...)
guess.reveal(ladder.epoch_seconds(profiles["uint8"]), "modelled, host costs fitted",
             f"{ladder.published('8-bit I/O').epoch_seconds:.1f} s, mean of epochs 2 to 5 [1]")
if parts:
    figures.show(
        call_parts_figure({"fp16, host normalises": parts["fp16"], "uint8, device normalises": parts["uint8"]},
                          "One call of 2,048 images, modelled"),
        "Two bars of four parts, one call: with fp16 nine tenths are the host loading images; with uint8 this "
        "part is less than a quarter as long, and all other parts are nearly unchanged.")
    show.table([{"part": part, **{f"{name}, ms": f"{1000 * getattr(parts[name], part):.1f}"
                                  for name in ("fp16", "uint8")}}
                for part in ("load", "call", "stream", "compute", "total")], index="part")

# %% [markdown]
# Nearly all that was saved is host work ("load": per image; "call": per call). The stream gave less than one
# per cent, as your bound said. Next come the whole ladder, where the host still limits (lesson 05 goes on
# there), and an explorer. Find out with it: on a host that needs no time per image, how much does uint8 still
# gain over fp16?

# %%
lesson.show_ladder("8-bit I/O")
explore_io(programs)

# %% [markdown]
# **Exercise 3** (4 min). Which of these programs does 8-bit I/O make clearly faster? True or False.
#
# * `pictures`: photos, loaded before each call; 0.9 ms each on the host, 0.7 of them for conversion and
#   normalisation.
# * `words`: a language model with sequences of numbers from 0 to 30,521, one for each word.
# * `hidden`: photos, loaded asynchronously while the IPUs work, and always ready in time; the stream is one per
#   cent of a call.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: pictures = ...
### STARTER: words = ...
### STARTER: hidden = ...
pictures, words, hidden = True, False, False
### END SOLUTION
check_who_gains(pictures, words, hidden)

# %% [markdown] tags=["hint"]
# Ask twice: are 256 values enough? And is what gets shorter the part that everything else waits for?

# %% [markdown] tags=["solution"]
# Only `pictures`: host work that nothing hides. `words` do not fit into a byte. In `hidden`, the IPUs already
# set the pace.

# %% [markdown]
# ## Train with bytes
#
# Does a network learn the same? Two trainings of a small one, from the same weights, over the same images.
# The data set hands out normalised fp32 images or, with `as_bytes()`, the stored bytes.


# %%
def losses(data, first_layer):
    torch.manual_seed(4)
    model = models.WithLoss(nn.Sequential(first_layer, models.SmallNetwork(width=8)))
    loader = poptorch.DataLoader(tidy, data, batch_size=16, shuffle=True)
    training_model = poptorch.trainingModel(model, tidy, poptorch.optim.AdamW(model.parameters(), lr=0.002))
    return [loops.train_epoch(training_model, loader).loss for _ in range(4)]

shapes = colour_shapes(train=True, images=640)
with_floats = losses(shapes, nn.Identity())
with_bytes = losses(shapes.as_bytes(), Normalise(torch.float32, mean=[0.5] * 3, std=[0.25] * 3))
apart = max(abs(one - other) for one, other in zip(with_floats, with_bytes))
print("losses of all epochs differ by less than 0.01:", apart < 0.01)
print("the last loss is below 2.15, and guessing gives ln 10 = 2.30:", with_bytes[-1] < 2.15)

# %% [markdown]
# ## Summary
#
# * Bytes a call: images x numbers x 4, 2 or 1. The stream follows them.
# * Normalise in the first layer: cast, then compute. Cast images only.
# * Logits and losses agree with host normalisation within rounding.
# * From 45 to 13 s: the host stopped converting and normalising. The stream's part is below one per cent.
# * Fitted host costs explain published epochs; they do not prove them. Measure your own host.
#
# **8-bit I/O is a way to take work from the host.**
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# The same cells run with the Poplar SDK. Time `for batch in loader: pass` to measure your loader alone. Streams
# show as StreamCopy phases in PopVision's execution trace. If they are long, three more options help:
# prefetch, I/O tiles that stream while other tiles compute, and fewer outputs [2].
#
# ## What transfers
#
# On GPUs the same holds: send uint8, then `.to(dtype)` and normalise on the device. Loaders such as NVIDIA
# DALI go further and decode there. Find the limiting part before you shrink another.
#
# ## References
#
# 1. IPU hands-on training workshop, day 03, *Memory and Performance Optimisation on the IPU* (2022), sections
#    Device Iterations and 8-bit I/O.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.4 and 4.5.
# 3. Graphcore, *Efficient data loading with PopTorch*, tutorial: 46,700 items of 65,536 bytes a second.
#
# **Next:** [lesson 05](05_async_data_loading.ipynb), where loading runs beside the IPUs.
