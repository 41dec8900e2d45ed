# %% [markdown]
# # 8-bit I/O: send bytes, normalise on the device
#
# After lesson 03 an epoch takes 45 seconds, and the IPUs work for only 4 of them (modelled). The workshop's next
# step changes one thing: the host sends each pixel as one byte, and the IPU does the normalising [1]. How much can
# that save?
#
# "Bytes are half as large as fp16 numbers" is the explanation that comes to mind first. In this lesson you find out
# how much of the saving it explains.
#
# *Plan 45 minutes, 18 of them for the exercises; the notebook itself runs in under one. Before it: lesson 03.*
# You will
#
# * count the bytes that a call sends,
# * write the byte path, from the picture to the network,
# * hunt bugs that such paths have,
# * bound what the link can save,
# * profile the device,
# * measure your own host,
# * take the step apart,
# * train with bytes.

# %%
import torch
from torch import nn
from torchvision import transforms

import poptorch
from ipu_course import ladder, loops, models, show
from ipu_course.lessons.eight_bit_io import (
    InputPath, lesson, measured_host, parts_by_image_type, pictures, programs_by_image_type, show_input_paths)

# %% [markdown]
# ## Count the bytes
#
# **I/O** (input and output) is the data that travels between the host, which runs Python, and the IPUs. The IPU
# fetches each micro-batch of images in a transfer called a **stream**. By default it does not compute during the
# transfer.
#
# Each colour of a pixel is a whole number from 0 to 255, so it fits into one byte (`uint8`). A network wants numbers
# with a mean near 0. If the host normalises the pixels, it must send floating-point numbers. If the IPU normalises
# them, the host can send bytes.
#
# Run the next cell. Then **predict**: an epoch takes 45 seconds with fp16 images. How many seconds does it take with
# bytes?

# %%
torch.set_num_threads(1)
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)  # ImageNet's, as in the workshop
numbers, images_per_call = 3 * 64 * 64, 64 * 8 * 4  # a call: micro-batch x accumulation x device iterations

show.table([{"type": name, "bytes per image": f"{size * numbers:,}", "KiB per micro-batch": 64 * size * numbers // 1024,
             "MB per call": f"{images_per_call * size * numbers / 1e6:.1f}"}
            for name, size in {"fp32": 4, "fp16": 2, "uint8": 1}.items()], index="type")
show_input_paths([InputPath("fp16 path", 2, numbers, False), InputPath("byte path", 1, numbers, True)],
                 "The byte path moves two steps from the host to the IPU, and halves the bytes on the link.")

# %% tags=["prediction"]
epoch = lesson.predict("seconds per epoch, when the host sends bytes", ...)

# %%
epoch.reveal(ladder.published("8-bit I/O").epoch_seconds, "derived from the published rate [1]")
print("No other step of the ladder saves as much. The next sections look for the cause.")

# %% [markdown]
# ## Write the byte path
#
# This is the transform of the workshop's fp16 path:
#
# ```python
# to_fp16 = transforms.Compose([
#     transforms.RandomHorizontalFlip(), transforms.Resize((64, 64)), transforms.PILToTensor(),  # a uint8 tensor
#     transforms.ConvertImageDtype(torch.float16), transforms.Normalize(MEAN, STD)])
# ```
#
# **Exercise 1** (8 min). Write the two ends of the byte path. `to_bytes` is a transform that turns a picture into
# a `uint8` tensor [3, 64, 64], flipped and resized as above. `Normalise` is a module that becomes the first layer of
# the network. It turns `uint8` images [N, 3, 64, 64] into the numbers of the fp16 path. Register `MEAN` and `STD` as
# *buffers*: `.half()` converts buffers, and PopTorch sends them to the IPU with the weights. The check calls
# `Normalise()` without arguments and then `.half()`, and runs both ends with `poptorch.DataLoader` and
# `poptorch.inferenceModel`.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: to_bytes = ...
### STARTER:
### STARTER: class Normalise(nn.Module):
### STARTER:     ...  # __init__ registers the buffers; forward takes the images
to_bytes = transforms.Compose([
    transforms.RandomHorizontalFlip(), transforms.Resize((64, 64)), transforms.PILToTensor()])

class Normalise(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))
        self.register_buffer("std", torch.tensor(STD).view(3, 1, 1))

    def forward(self, images):
        return (images.to(self.mean.dtype) / 255 - self.mean) / self.std
### END SOLUTION
lesson.check(1, to_bytes, Normalise)

# %% [markdown] tags=["hint"]
# The first three transforms are enough for the host. In the module,
# `self.register_buffer("mean", torch.tensor(MEAN).view(3, 1, 1))` gives each colour its own mean. Call
# `super().__init__()` first. Cast the images to the type of the buffers before you calculate.

# %% [markdown] tags=["solution"]
# `.half()` turns the buffers into fp16, and `images.to(self.mean.dtype)` follows them. The module is plain PyTorch:
# it also runs on a CPU or a GPU. The course has the same module as `models.NormaliseOnDevice`, which the rest of
# this notebook uses.

# %% [markdown]
# ## Hunt bugs
#
# Each of these four lines looks plausible, but three of them have a bug. `x` holds `uint8` pixels. We look at one
# colour only, which is enough to see the effect, and a difference of 0.01 is rounding, not a bug.
#
# * **A**: `(x.half() - 124) / (255 * 0.229)`, where 124 is 255 x 0.485, rounded
# * **B**: `(x - 124).half() / (255 * 0.229)`
# * **C**: `((x // 255).half() - 0.485) / 0.229`
# * **D**: `labels = labels.to(torch.uint8)`, with 1,000 classes
#
# **Exercise 2** (3 min). Which line is `innocent`? Answer with a letter, such as `"D"`. What does line B make of a
# black pixel, 0 (`black`, two digits after the point)? How many different values can a picture have after line C
# (`values`)? Answer before you run the cell that prints the results.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: innocent = ...
### STARTER: black, values = ..., ...
innocent = "A"
black, values = 132 / (255 * 0.229), 2
### END SOLUTION
lesson.check(2, innocent, black, values)

# %% [markdown] tags=["hint"]
# Calculate on paper, step by step. A `uint8` number cannot be negative: one below 0 is 255.

# %% [markdown] tags=["solution"]
# * **A** is right: it casts first, and fp16 holds every whole number up to 2,048 and down to -2,048 exactly.
# * **B** subtracts first and wraps around: in `uint8`, 0 - 124 is 132, so black becomes 132 / 58.4 = 2.26, as bright
#   as white. PyTorch raises no error and prints no warning.
# * **C** leaves two values, because `//` drops the fraction: 255 becomes 1, and every other pixel 0.
# * **D** changes every label above 255 without a warning. Cast images only.

# %%
x = torch.tensor([0, 100, 200, 255], dtype=torch.uint8)
ways = {"right": (x.double() / 255 - 0.485) / 0.229, "A": (x.half() - 124) / (255 * 0.229),
        "B": (x - 124).half() / (255 * 0.229), "C": ((x // 255).half() - 0.485) / 0.229}
show.table([{"line": name, **{f"pixel {pixel}": f"{number:.2f}" for pixel, number in zip(x.tolist(), way.tolist())}}
            for name, way in ways.items()], index="line")
print("D turns labels 9, 255 and 999 into", torch.tensor([9, 255, 999]).to(torch.uint8).tolist())

# %% [markdown]
# ## Bound what the link can save
#
# Before you ask a model, ask how much a shorter stream can save *at most*. The workshop published 1.88 s a call
# before this step and 1.77 calls a second after it [1]. The link between host and IPU moves at least 3 GB/s [3]. (Its
# peak is higher, but a bound should not depend on peaks.)
#
# **Exercise 3** (4 min). How many bytes does uint8 save in one call, compared with fp16? At 3 GB/s, what share of the
# published saving per call can these bytes explain? Give the share as a number from 0 to 1.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: saved_bytes = ...
### STARTER: share = ...
saved_bytes = images_per_call * numbers * (2 - 1)
share = (saved_bytes / 3e9) / (1.88 - 1 / 1.77)
### END SOLUTION
lesson.check(3, saved_bytes, share)

# %% [markdown] tags=["hint"]
# Each number becomes one byte smaller. The saved bytes divided by the bytes a second give the seconds that the stream
# saves. The call got shorter by 1.88 s minus 1 / 1.77 s.

# %% [markdown] tags=["solution"]
# 25 MB at 3 GB/s take 8 ms, and the call got more than 1.3 s shorter: the link explains less than one per cent.
# The bound covers the link only, and not the work on the host. The host also copies every byte that it sends, but
# even at a slow 1 GB/s one copy of 25 MB takes only 25 ms.

# %% [markdown]
# ## Profile the device
#
# Next we profile the device at full size: ResNet-101 over two IPUs, with images of each type. The device casts fp32
# images to fp16, it uses fp16 images as they are, and it casts and normalises uint8 images.
#
# **Predict:** uint8 images are half as large as fp16 images. How many times as fast does that make the *device*, with
# stream and computation together, but without the host?

# %% tags=["prediction"]
faster = lesson.predict("device time with fp16 images, divided by that with uint8 images", ...)

# %%
programs = programs_by_image_type()
parts = parts_by_image_type(programs)
faster.reveal(parts["fp16"].device / parts["uint8"].device, "modelled")
show.table([{"images": name, "stream, ms per call": f"{1000 * each.stream:.1f}",
             "compute, ms per call": f"{1000 * each.compute:.1f}", "device, ms per call": f"{1000 * each.device:.1f}"}
            for name, each in parts.items()], index="images")

# %% [markdown]
# The time of the stream halves with the bytes, but it is a small part of the device's time. So the device does not
# explain the saving either, and only the host is left.
#
# ## Measure your host
#
# On the byte path the host has less to *do*: it neither converts nor normalises. You can measure what that saves on
# your own machine. `measured_host` times ten batches of a `poptorch.DataLoader` with the workshop's transform, without
# any training. It does so three times and keeps the fastest run, because other programs can only slow a loader down.
#
# **Predict:** how many times as long does your processor take for an image on the fp16 path as on the byte path?

# %% tags=["prediction"]
slower = lesson.predict("time per image on the fp16 path, divided by that on the byte path", ...)

# %% tags=["nbval-ignore-output"]
measured = {"fp16": measured_host(eight_bit_io=False), "uint8": measured_host(eight_bit_io=True)}
slower.reveal(measured["fp16"].seconds_per_sample / measured["uint8"].seconds_per_sample, "measured here")

# %% [markdown]
# ## Take the step apart
#
# The workshop did not publish how long its host needs for an image. The ladder uses 0.80 ms (fp16) and 0.18 ms
# (uint8), which were **fitted** on the published epochs. It is therefore no proof of the model that its epochs agree
# with the published ones.
#
# The explorer's two bars are a call with fp16 images and a call with the settings that you choose, at first with
# uint8 images. Nearly all of the difference is host work. The table after it compares the fitted times with your own
# measurement: how long would a modelled epoch take if your machine were the workshop's host?

# %%
lesson.show_ladder("8-bit I/O")
lesson.explore(programs)

# %% tags=["nbval-ignore-output"]
fitted = {name: ladder.host(eight_bit_io=name == "uint8") for name in ("fp16", "uint8")}
rows = [{"host": name, **{f"{kind}, ms per image": f"{1000 * host.seconds_per_sample:.2f}"
                          for kind, host in both.items()},
         **{f"{kind}, s per epoch": f"{ladder.epoch_seconds(programs[kind].profile(host=host)):.1f}"
            for kind, host in both.items()}}
        for name, both in {"the workshop's, fitted": fitted, "this machine, measured": measured}.items()]
workshop = {"fp16": ladder.published("device iterations 4"), "uint8": ladder.published("8-bit I/O")}
rows += [{"host": "derived from [1]", **{f"{kind}, s per epoch": f"{step.epoch_seconds:.1f}"
                                         for kind, step in workshop.items()}}]
show.table(rows, index="host")

# %% [markdown]
# **Converting and normalising took 0.1 to 0.2 ms per image on the machines that we tried. Why does the ladder have
# 0.80 - 0.18 = 0.62 ms?** We do not know. Both fitted numbers are what remains of the published calls after the
# modelled time of the device is subtracted. So they may also contain a slower processor, PyTorch's fp16 code of 2022,
# copies between the loader and the link, or threads that wait for each other. Your measurement contains only your
# processor and your libraries, and on a busy machine it varies a lot: run the cell again. The fit shows how large the
# host's part is. It does not show the cause.
#
# **Exercise 4** (3 min). Use the explorer above. First set the host to 0 ms per image: by what percentage is the rate
# with uint8 images higher than the rate with fp16 images? Then choose uint8 images and `Sync`: what is the slowest
# host on the slider, in ms per image, with which loading is not the bottleneck?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: gain_percent = ...
### STARTER: host_ms = ...
gain_percent = 100 * (10_350 / 9_978 - 1)
host_ms = 0.05
### END SOLUTION
lesson.check(4, gain_percent, host_ms, using=programs)

# %% [markdown] tags=["hint"]
# Leave accumulation at 8 and device iterations at 4. The table has a column with the images per second, and one with
# the bottleneck ("stage 0" is the first IPU).

# %% [markdown] tags=["solution"]
# With a host that takes no time, uint8 gains 3.7 %: the shorter stream can give no more. From 0.1 ms per image on,
# loading takes longer than the rest of the call.

# %% [markdown]
# ## Train with bytes
#
# Does a network learn equally well from bytes? We train a small network on synthetic pictures, once on each path,
# from the same first weights and with the images in the same order. The host sends fp32 numbers of four bytes each on
# one path, and pixels of one byte each on the other.

# %%
tidy = poptorch.Options()
tidy.showCompilationProgressBar(False)  # keeps this page tidy
on_host = transforms.Compose([transforms.PILToTensor(), transforms.ConvertImageDtype(torch.float32),
                              transforms.Normalize(MEAN, STD)])

def losses(transform, first_layer):
    torch.manual_seed(4)
    model = models.WithLoss(nn.Sequential(first_layer, models.SmallNetwork(width=8)))
    loader = poptorch.DataLoader(tidy, pictures(transform, images=640), batch_size=16, shuffle=True)
    training_model = poptorch.trainingModel(model, tidy, poptorch.optim.AdamW(model.parameters(), lr=0.002))
    return torch.tensor([loops.train_epoch(training_model, loader).loss for _ in range(4)])

floats = losses(on_host, nn.Identity())
pixels = losses(transforms.PILToTensor(), models.NormaliseOnDevice(torch.float32))
print("losses of all epochs differ by less than 0.01:", bool((floats - pixels).abs().max() < 0.01))
print("the last loss is below 2.15, and guessing gives ln 10 = 2.30:", bool(pixels[-1] < 2.15))

# %% [markdown]
# ## Summary
#
# * Send pixels as `uint8`, and cast and normalise them in the first layer. Do not cast labels.
# * Losses agree with those of host normalisation within rounding.
# * The link explains less than one per cent of the step from 45 to 13 s. This bound needs no model.
# * The host explains the rest. How much work the workshop's host did for an image is fitted, not measured.
#
# **8-bit I/O takes work off the host.** The price is a little computation on the IPU. The host is still the
# bottleneck, and the IPUs still wait for it: that is the problem of lesson 05.
#
# ## On real hardware
#
# The same cells run with the Poplar SDK. To measure your loader alone, time `for batch in loader: pass`. If
# PopVision's execution trace shows long StreamCopy phases, the optimisation guide offers three remedies [2]:
#
# * Fill the stream's buffers in advance: `opts._Popart.set("defaultPrefetchBufferingDepth", 3)`.
# * Set some tiles aside for I/O, so that streams run while the other tiles compute. The guide allows that on a single
#   IPU or in a grouped pipeline. PopTorch allows it with `ShardedExecution` only, so not for the ladder's pipeline:
#   set `opts.TensorLocations.numIOTiles(32)`, mark the input with `poptorch.set_overlap_for_input`, and return `All`
#   results or their `Sum`.
# * Return fewer results, or results of a smaller type.
#
# ## What transfers
#
# You do the same on GPUs: send uint8, then cast with `.to(dtype)` and normalise on the device. NVIDIA DALI even
# decodes the images there. The method does not help with text, whose tokens need more than 256 values, and it gains
# nothing where training never waits for the loader.
#
# ## References
#
# 1. IPU training workshop, day 03, *Memory and Performance Optimisation on the IPU* (2022), sections
#    Device Iterations and 8-bit I/O.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.4.
# 3. Graphcore, *Efficient data loading with PopTorch*, tutorial: 46,700 items of 65,536 bytes a second.
#
# **Next:** The host still loads first and calls afterwards, and now it will load while the IPUs work.
