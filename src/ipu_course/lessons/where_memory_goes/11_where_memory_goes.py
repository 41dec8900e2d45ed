# %% [markdown]
# # Where memory goes
#
# In half precision, ResNet-101 has 85 MiB of weights. The two IPUs of the workshop have 1,794 MiB. And yet the
# program fills **529 of the 624 KiB** of its fullest tile, and a micro-batch of 128 instead of 64 images no longer
# fits (both modelled). Where has all the memory gone?
#
# Part one of the course was about speed. Part two is about memory, and it begins with a map: you take a tile apart,
# first by hand and then in the profile. How to make its parts smaller comes after that.
#
# *Plan 75 minutes, 30 of them for the exercises; the notebook itself runs in under one. Before it: lessons
# [00](00), [01](01) and [02](02).*
#
# You will
#
# * take the fullest tile apart,
# * draw the training graph,
# * count what is always live,
# * count what waits for the backward pass,
# * find the peak,
# * tell the floor from the hill, and change the micro-batch,
# * weigh the code,
# * lay weights on tiles, and compare them tile by tile,
# * recognise a costly tile mapping, and see what memory buys.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, ladder, quiz, show
from ipu_course.lessons.where_memory_goes import (
    code_kib, hill_of, kept_on_each_tile, lesson, show_always_live, show_code, show_gradients, show_hill,
    show_parameter_tiles, show_training_graph)
from ipu_course.models import ClassifierWithLoss, WithLoss

torch.set_num_threads(1)

# %% [markdown]
# What do you expect? Answer before you read on. Nothing here is judged, and the end of part two asks again.

# %%
quiz.before("memory", ...)

# %% [markdown]
# ## Take the fullest tile apart
#
# A GPU has one large memory, and a program allocates from it while it runs. An IPU has 1,472 small memories, one on
# each tile, and the compiler places everything in them before the program starts [3]. Four differences follow:
#
# * Shapes are fixed. A new batch size is a new program.
# * Every tile has to hold its part of the data **and** of the code.
# * A program that does not fit is refused when it is compiled, never later.
# * You decide how a model is divided among IPUs, so you take part in allocating memory.
#
# Here is the workshop's program again, as in lesson 02. **Predict:** what percentage of its fullest tile do the
# weights take? Give a number this time.

# %% tags=["prediction"]
weights = lesson.predict("percentage of the fullest tile that the weights take", ...)

# %%
resnet = torchvision.models.resnet101()
resnet.layer3[8] = poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)  # the second IPU begins here
half = torch.float16
options = poptorch.Options()
options.Training.gradientAccumulation(3)
training = ClassifierWithLoss(resnet).half()
optimiser = poptorch.optim.AdamW(training.parameters(), loss_scaling=1000, accum_type=half,
                                 first_order_momentum_accum_type=half)
workshop = engine.profile_module(training, ladder.micro_batch(half), options, optimiser)
fullest = workshop.memory[1]
weights.reveal(100 * fullest.bytes_by_category["variables"] / fullest.max_tile_bytes, "modelled")
show.memory(workshop, lesson.takeaway("fullest_tile"))
print(f"{lesson.published('tiles_16_16').kind}: {lesson.published('tiles_16_16').text} [1]")

# %% [markdown]
# These bars are IPU 1's, whose tiles are fuller than IPU 0's. "Variables" are the weights and whatever else a network
# keeps, such as the running means of a normalisation. The following sections go through the bars: first the parameters
# and what belongs to them, then activations and temporary data, then code.
#
# ## Draw the training graph
#
# From here on, you work with a network of your own. This one is a good start. Replace its layers if you like, as long
# as it takes images of 3 x 64 x 64 pixels. `profiled` models its training on one IPU.

# %%
def make_network():
    layers, channels = [], 3
    for width in (64, 128, 256, 512):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(2)]
        channels = width
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(512 * 4 * 4, 1024), nn.ReLU(), nn.Linear(1024, 10))

images = torch.zeros(16, 3, 64, 64)  # one micro-batch
show_training_graph(make_network(), images)

# %%
def profiled(micro_batch=16, optimiser="AdamW", half=False, accumulation=4):
    network, pixels = WithLoss(make_network()), torch.zeros(micro_batch, 3, 64, 64)
    if half:
        network, pixels = network.half(), pixels.half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(accumulation)
    optimisers = {"SGD": poptorch.optim.SGD(network.parameters(), lr=0.1),
                  "SGD with momentum": poptorch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9),
                  "AdamW": poptorch.optim.AdamW(network.parameters())}
    labels = torch.zeros(micro_batch, dtype=torch.int64)
    return engine.profile_module(network, (pixels, labels), options, optimisers[optimiser])

mine = profiled()
print(f"fullest tile, modelled: {mine.memory.max_tile_bytes / 1024:.0f} KiB")

# %% [markdown]
# The compiler sees training as one static graph: each operation of the forward pass has a backward operation, and if
# it has weights, an update, too [3]. Look at the row "kept": the gradient of a convolution or a normalisation needs the
# layer's input, and the gradient of a ReLU needs its output. Those tensors stay in memory until the backward pass has
# used them. (A tensor that two layers need is drawn at the first one.)
#
# ## Count what is always live
#
# **Always-live** data keeps its place during the whole step. You can count it before you compile anything. (We could
# read only the headings of the guide's chapter on counting, so the procedures down to "Weigh the code" are ours.)
#
# * **variables**: parameters and floating-point buffers, each in its own type,
# * **optimiser state**: 0 numbers a parameter for SGD, 1 with momentum, 2 for AdamW,
# * **gradient accumulators**: 1 number a parameter, if the program accumulates.
#
# State and accumulators belong to *trained* parameters, and PopTorch keeps them in float32, even for a network in half
# precision, unless the optimiser says otherwise ([lesson 01](01)).
#
# **Exercise 1** (8 min). Write `always_live(network, moments, accumulates)`. It returns three numbers: the bytes of the
# variables, of the optimiser state (`moments` numbers for each parameter) and of the accumulators (if `accumulates`).

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def always_live(network, moments, accumulates):
### STARTER:     ...
def always_live(network, moments, accumulates):
    buffers = [each for each in network.buffers() if each.is_floating_point()]
    variables = sum(each.numel() * each.element_size() for each in (*network.parameters(), *buffers))
    trained = sum(each.numel() for each in network.parameters() if each.requires_grad)
    return variables, 4 * moments * trained, 4 * trained if accumulates else 0
### END SOLUTION
lesson.check(1, always_live)

# %% [markdown] tags=["hint"]
# `numel()` and `element_size()` of a tensor give its elements and the bytes of each. Which tensors are in
# `network.buffers()`? One of them is an integer.

# %% [markdown] tags=["solution"]
# Batch normalisation has two parameters and two buffers for each channel, and a counter that the device does not need.

# %%
show_always_live(always_live, make_network(), mine)

# %% [markdown]
# The sums agree with the profile to the byte. The two columns on the right do not quite agree: the fullest tile holds a
# little more than its even share. You will find out why in the section on tiles.
#
# ## Count what waits for the backward pass
#
# **Not-always-live** data shares its place with other data: as soon as it is no longer needed, something else can lie
# there. The activations that are kept for the backward pass are such data. PyTorch can tell you which these are: inside
# `with torch.autograd.graph.saved_tensors_hooks(pack, unpack):` it calls `pack(tensor)` for each tensor that it saves
# for the backward pass, and keeps what `pack` returns; `unpack` gives the tensor back.
#
# **Exercise 2** (8 min). Write `kept_for_backward(network, images)`. It returns the bytes of the activations that are
# kept, the images among them. Leave out weights and buffers, which you have counted, and integers: for max-pooling,
# PyTorch saves indices, but an IPU compares input and output again. Count each tensor once, even if two layers save it.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def kept_for_backward(network, images):
### STARTER:     ...
def kept_for_backward(network, images):
    own = {each.data_ptr() for each in (*network.parameters(), *network.buffers())}
    kept = {}

    def pack(tensor):
        if tensor.is_floating_point() and tensor.data_ptr() not in own:
            kept[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        network(images)
    return sum(kept.values())
### END SOLUTION
lesson.check(2, kept_for_backward)

# %% [markdown] tags=["hint"]
# `data_ptr()` is a tensor's address. Two views of one tensor have the same, and so has a weight that a layer saves.

# %% [markdown] tags=["solution"]
# A dict with addresses as keys counts each tensor once. A convolution saves its input, batch normalisation its input,
# a ReLU its output, which is also the input of the next layer.

# %% [markdown]
# ## Find the peak
#
# Spread your sum over 1,472 tiles. What else needs memory for a while? **Predict** how high the hill of all
# not-always-live data is at its **peak**, the moment that decides whether the program fits, in KiB on the fullest tile.

# %%
kept_kib = kept_on_each_tile(kept_for_backward, make_network(), images)

# %% tags=["prediction"]
peak = lesson.predict("KiB of not-always-live data on the fullest tile, at the peak", ...)

# %%
hill = hill_of(mine)
peak.reveal(hill.height, "modelled")
show_hill(hill, kept_kib)

# %% [markdown]
# For the network above, the activations rise to what you counted, to within 3 %, and fall in the backward pass. But
# the peak is four times as high, because single operations need **temporary data** for a moment: rearranged inputs
# and partial sums of a matrix product or convolution. Here the weight gradients of the convolutions need most. You
# cannot count temporary data by hand, because the compiler plans it. An option limits it, the available memory
# proportion ([lesson 12](12)).
#
# One more kind is missing from both counts: **back-propagation variables**, one gradient for each parameter. With
# accumulation, each gradient is added to its accumulator at once and makes room. Without accumulation, it waits for the
# weight update:

# %%
show_gradients({accumulation: profiled(accumulation=accumulation) for accumulation in (4, 1)})

# %% [markdown]
# ## Tell the floor from the hill, and change the micro-batch
#
# The tile holds a **floor**, which is always live, and a **hill** on top of it. Most remedies lower only one of the
# two, so ask first which is too high. The optimiser and the types of its state change the floor. The micro-batch
# changes the hill. Move the controls: when is the floor the larger part, and when the hill?

# %%
lesson.explore(profiled)

# %% [markdown]
# **Exercise 3** (5 min). In float32 with AdamW, how many KiB of the fullest tile do you free when you halve the
# micro-batch from 32 to 16, and how many from 2 to 1? With a micro-batch of 2, how many do you free when you take SGD
# (without momentum) instead of AdamW?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: freed_from_32 = ...
### STARTER: freed_from_2 = ...
### STARTER: freed_by_sgd = ...
tile = {size: profiled(micro_batch=size).memory.max_tile_bytes / 1024 for size in (1, 2, 16, 32)}
freed_from_32 = tile[32] - tile[16]
freed_from_2 = tile[2] - tile[1]
freed_by_sgd = tile[2] - profiled(micro_batch=2, optimiser="SGD").memory.max_tile_bytes / 1024
### END SOLUTION
lesson.check(3, freed_from_32, freed_from_2, freed_by_sgd, using=profiled)

# %% [markdown] tags=["hint"]
# Move the slider to each of the four, and read the column "fullest tile". Then stay at 2 and change the optimiser.

# %% [markdown] tags=["solution"]
# With the network above, about 164 KiB, about 7.5, and about 55. Below some micro-batch, half precision or another
# optimiser frees more than halving the micro-batch again. A smaller micro-batch need not change the training: more
# accumulation keeps the global batch, and takes no memory for activations ([lesson 02](02)).

# %% [markdown]
# Did you notice that a larger micro-batch sometimes needs *less*, such as 48 against 40? The compiler chose another
# plan for the same convolution there. (Does 48 need less on hardware, too? The difference is far below the model's
# error, so this is too close to call.)
#
# ## Weigh the code
#
# Tiles also hold their program: **vertex code** (the small programs that compute), **vertex state** (the addresses of
# their operands), **control code**, and **exchange code**, which tells each tile in each cycle what to send and
# receive.
#
# Add up the bars of code for IPU 1 in the first figure of this lesson. IPU 0 holds fewer weights and larger images.
# **Predict:** what percentage of *its* fullest tile is code, with stacks and gaps?

# %% tags=["prediction"]
code = lesson.predict("percentage of the fullest tile of IPU 0 that is code, stacks and gaps", ...)

# %%
first = workshop.memory[0]
code.reveal(100 * 1024 * code_kib(first) / first.max_tile_bytes, "modelled", published="code_resnet50")
show_code(workshop, lesson.published("code_bert"))
print(f"with half the micro-batch, your network's code changes by "
      f"{code_kib(profiled(micro_batch=8).memory[0]) - code_kib(mine.memory[0]):.1f} KiB")

# %% [markdown]
# Code follows the number of *different* steps, not the size of the data: IPU 0 runs more different steps, and half the
# micro-batch changes little. The published sums belong to other networks and do not count stacks and gaps. The bytes
# that the model gives to each step were **fitted** to these two reports, so agreement with them would prove nothing.
#
# Our procedure (we could not read the guide's section): count data by hand, and get the size of code from a
# compilation, not from a formula. On hardware, code has a limit of its own, too: it may lie only in about a third of a
# tile's memory (assumed), which the model does not check.
#
# ## Lay weights on tiles, and compare them tile by tile
#
# In lesson 00 you spread 10 bytes for each of 44.5 million parameters over two IPUs: 147.8 KiB a tile. But the profile
# said 225 for IPU 1. Which tiles are to blame?
#
# A **tile mapping** says which tile holds which elements. The simplest one is linear: tiles in a row take one piece
# each, in order. In the public source of PopLibs [5], a tile that holds any of a convolution's weight holds at least
# 256 bytes of it, and a weight that needs only some of the tiles lies on the last ones. (Many very small pieces would
# need more code for exchanges.)
#
# **Exercise 4** (9 min). Write `map_linearly(elements, element_bytes)`. It returns a list with the bytes of one
# weight on each of the 1,472 tiles. Every tile in use holds the same whole number of elements: as few as possible,
# but at least 256 bytes. The tiles in use are the last ones, and the very last of them, tile 1471, gets the rest.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def map_linearly(elements, element_bytes):
### STARTER:     ...
def map_linearly(elements, element_bytes):
    piece = max(-(-elements // 1472), 256 // element_bytes)
    held = [element_bytes * min(piece, elements - start) for start in range(0, elements, piece)]
    return [0] * (1472 - len(held)) + held
### END SOLUTION
lesson.check(4, map_linearly)

# %% [markdown] tags=["hint"]
# First find the elements of one piece: the larger of two numbers. `-(-a // b)` rounds up. Then make a list of the
# pieces, of which only the last may be smaller, and put the tiles that hold nothing before it.

# %% [markdown] tags=["solution"]
# A weight of 4,096 float16 elements, 8 KiB, lies on 32 tiles, and all those tiles are the last ones.

# %%
layers = {0: [resnet.conv1, resnet.layer1, resnet.layer2, *resnet.layer3[:8]],
          1: [*resnet.layer3[8:], resnet.layer4, resnet.fc]}
show_parameter_tiles(workshop, map_linearly, layers)
print(f"{lesson.published('imbalance_resnet50').kind}: fullest tile to mean: "
      f"{lesson.published('imbalance_resnet50').text} [2]")

# %% [markdown]
# So *no tile* is to blame for the 225 KiB. The late layers have three quarters of the parameters, so IPU 1 holds 224
# KiB on *nearly every* tile. This is **IPU imbalance**, and only another cut helps. IPU 0 shows the other kind, **tile
# imbalance**: many small weights all lie on the last tiles, so its fullest tile holds 30 % more than the mean. Larger
# tensors would help, or weights that lie on different tiles. (PopTorch has a setting for the latter,
# `options.Training.setConvolutionDithering(True)`. The model does not compute its effect.)
#
# How far can you trust this? The 256 bytes and the last tiles are published, but PopLibs maps each weight as the plan
# of its convolution uses it, not simply in order. Over all data, the model's IPU 0 has a ratio of fullest tile to mean
# of 1.05. The published ratio is larger, but it belongs to another network. Which data cause it on hardware is an open
# question.
#
# ## Recognise a costly tile mapping
#
# Layout costs time, too. Many operations want their operands contiguous on each tile. A transposed tensor is strided,
# and may have to be copied first. In PopVision, look for many `DstStridedCopy` vertices, and for `PreArrange` steps in
# the execution trace [3]. In the model, look for *rearrangement*:

# %%
class Transposed(nn.Module):
    def __init__(self, contiguous):
        super().__init__()
        self.contiguous = contiguous

    def forward(self, x):
        x = x.transpose(1, 2)
        return torch.relu(x.contiguous() if self.contiguous else x)

for contiguous in (False, True):
    copied = engine.profile_module(Transposed(contiguous), (torch.zeros(4, 1024, 1024),), poptorch.Options())
    print("contiguous:" if contiguous else "a view:", *(f"{op.name} {op.cycles:,.0f} cycles;" for op in copied.ops),
          f"fullest tile {copied.memory.max_tile_bytes / 1024:.0f} KiB")
print(f"{lesson.published('prearrange').kind}: {lesson.published('prearrange').text} [3]")

# %% [markdown]
# The copy costs twice as much as the ReLU that it serves. The model charges for a rearrangement that your program asks
# for. Where PopLibs rearranges data on its own, the model has no line for it, but PopVision shows it. There are three
# remedies: work on the tensor as it lies, swap the operands of a product instead of transposing one [3], and only if
# both fail, write a custom operation.
#
# ## See what memory buys
#
# Free memory buys speed: larger batches, faster plans for products and convolutions, and less streaming [3]. What else
# decides how fast a model is? This is our list, because we could not read the guide's section on it: the schedule and
# the batch (lessons 02 and 06), the host and its I/O (03 to 05), precision (01), replicas (10), and memory, from here
# on.
#
# ## Summary
#
# * The fullest tile holds a floor (always live) and, at the peak, a hill (not always live).
# * The floor is variables, optimiser state, accumulators and code. You can count the first three by hand, to the byte.
# * The hill is kept activations, gradients and temporary data. You can count the activations, and read the rest in a
#   profile.
# * The micro-batch changes almost only the hill. Code follows the number of different steps.
# * IPU imbalance and tile imbalance look alike in a single number, so look at every tile.
#
# **Takeaway:** before you save memory, find out what uses it.
#
# Your predictions and exercises: `python -m ipu_course report`.
#
# ## On real hardware
#
# The counts by hand need no IPU. PopVision's memory report shows categories and tiles, and its liveness report shows
# the hill. Real reports have more categories, and gaps. Compiling offline needs no IPU either ([lesson 13](13)).
#
# ## What transfers
#
# On a GPU, the same floor and hill lie in one memory. `torch.cuda.memory_summary()` shows how full it is, and
# `saved_tensors_hooks` works there unchanged. ZeRO's authors count 16 bytes for each parameter for Adam in mixed
# precision [4]. Only the tiles are special to the IPU.
#
# ## References
#
# 1. IPU hands-on training workshop, day 03 (2022): ResNet-101 on two Mk2 IPUs, PopVision memory report.
# 2. IPU hands-on training workshop, day 02 (2022): ResNet-50 in float32, micro-batch 8, two IPUs a replica, PopVision
#    memory report.
# 3. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 2.2, 3.1, 3.2, 4.1, 4.3.1
#    (table 4.1) and 4.8. Of 2.3, 3.3 to 3.5 and 5.6 we know the headings only; the procedures for them are ours.
# 4. Rajbhandari et al., *[ZeRO](https://arxiv.org/abs/1910.02054)*, 2019.
# 5. Graphcore, [PopLibs](https://github.com/graphcore/poplibs), public source of convolutions, for SDK 2 and 3:
#    `mapActivationsOrWeights` in `lib/poplin`.
#
# **Next:** You know what fills a tile. Now make each part smaller, and learn what every technique costs.
