# %% [markdown]
# # Optimiser state: on the chip or off it
#
# In 32 bits, the workshop's ResNet-101 runs out of memory on two IPUs [1]. Halve its micro-batch to 32 images, and the
# fullest tile still needs **672 KiB**, though it has only 624 (modelled). **180 KiB** of that are the state of the
# optimiser, AdamW. It sits there during every forward and backward pass, although only the weight update reads it.
#
# You can move it off the chip. The program then fits, but each update has to fetch the state and write it back. How
# much does that cost, and how little do you have to move?
#
# *Plan 50 minutes, 21 of them for the exercises; the notebook itself runs in under one. Before it: lessons 01, 02
# and 06.* You will
#
# * see what does not fit,
# * count the state,
# * move it off the chip and price the copies,
# * find the copies in the profile,
# * make the program fit at the lowest cost,
# * accumulate until the copies hardly matter,
# * move something else,
# * turn offloading off again,
# * share the state out over replicas.

# %%
import torch

import poptorch
from ipu_course import figures, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.optimiser_offload import (
    copies_share, lesson, place_table, resnet101, show_accumulations, show_parts, show_places, show_price,
    show_sharding, show_states, show_update)
from ipu_course.loops import train_epoch
from ipu_course.models import SmallNetwork, WithLoss

torch.set_num_threads(1)
shapes = colour_shapes(train=True, images=640)
SGD, AdamW, half, single = poptorch.optim.SGD, poptorch.optim.AdamW, torch.float16, torch.float32

# %% [markdown]
# ## See what does not fit
#
# `resnet101` captures the workshop's program for the IPU Model: two IPUs, AdamW, micro-batches of 32 images in 32
# bits, or of 64 in 16 bits. In this lesson you write `place`, a function that says in the options where tensors live.

# %%
def program(place=None, dtype=single):
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    if place is not None:
        place(options)
    return resnet101(options, dtype)

resnet = program()  # without a placement, everything is on the chip
on_chip = resnet.profile()
show_parts(on_chip)

# %% [markdown]
# ## Count the state
#
# **State** is what an optimiser keeps from one update to the next. Momentum keeps one tensor for each weight, a
# running mean of its gradients (the *velocity*). Adam, AdamW and LAMB keep two **moments**: means of the gradients and
# of their squares. The **accumulator** is something else: it sums up gradients, and every update empties it.
#
# After a call, `optimizer.state_dict()` returns the state. The next cell trains a small network once with each
# optimiser and counts. Below the table you see where the state can live.

# %%
def trained_state(optimiser, **settings):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    network = WithLoss(SmallNetwork())
    optimizer = optimiser(network.parameters(), lr=0.01, **settings)
    model = poptorch.trainingModel(network, options, optimizer)
    model(shapes.images[:32], shapes.labels[:32])  # one weight update
    state = optimizer.state_dict()["ipu_state"]
    model.detachFromDevice()
    return state

show_states({"SGD": trained_state(SGD), "SGD with momentum": trained_state(SGD, momentum=0.9),
             "AdamW": trained_state(AdamW),
             "AdamW, first moment in 16 bits": trained_state(AdamW, first_order_momentum_accum_type=half)})
show.drawing(figures.streaming_state(), "The state is on the chip during the update only.")

# %% [markdown]
# ## Move it off the chip, and price the copies
#
# Plain SGD keeps nothing, even when it accumulates. AdamW keeps twice the size of the weights.
#
# Beside its IPUs, an IPU-M2000 has ordinary memory chips: **streaming memory**, which is large and slow. Tensors that
# live there are in **remote buffers**. By default PopTorch keeps everything on the chip.
#
# **Exercise 1** (4 min). Our ResNet-101 has 44.5 million parameters, and AdamW in 32 bits. How many MB (millions of
# bytes) of state is that? Streaming memory gives the IPUs that copy about **20 GB/s** together (estimated: nobody has
# published a figure). How many milliseconds do the copies of one update take?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: state_megabytes = ...
### STARTER: copy_milliseconds = ...
state_megabytes = 44.549160 * 8
copy_milliseconds = 2 * state_megabytes / 20
### END SOLUTION
lesson.check(1, state_megabytes, copy_milliseconds)

# %% [markdown] tags=["hint"]
# The table has the bytes for each parameter. An update changes the state, so where does it have to go afterwards?

# %% [markdown] tags=["solution"]
# 44.549 million x 8 bytes = 356 MB. The update reads it and writes it back: 713 MB at 20 MB in a millisecond.

# %% [markdown]
# ## Find the copies in the profile
#
# `setOptimizerLocation` moves the state, as the cell after your prediction shows. In PopVision's execution trace, the
# copies are called **StreamCopyMidRemoteBuffer**. The guide advises looking at their percentage of the cycles [2].
#
# **Predict:** with everything on the chip, an update with accumulation 8 would take 49.3 ms (modelled). What
# percentage of the device time do the copies take once the state is off the chip?

# %% tags=["prediction"]
share = lesson.predict("percentage of the device time that the copies take", ...)

# %%
def all_state(options):
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    options.TensorLocations.setOptimizerLocation(settings)

off_chip = program(all_state).profile()
share.reveal(copies_share(off_chip), "modelled", published="copies_share")
show_update(off_chip)
show_places({"state on the chip": on_chip, "state off the chip": off_chip},
            "Most of the memory is saved on IPU 1, which has the widest layers.")

# %% [markdown]
# The two IPUs share the 20 GB/s until IPU 0, which has less state, has finished. The error band is wide, because the
# rate is an estimate and nobody has published a program with which to test it.
#
# ## Make it fit at the lowest cost
#
# The program now fits with 150 KiB to spare, so you moved more than necessary. Settings have a threshold:
# `minElementsForOffChip(n)` keeps tensors with fewer than *n* elements on the chip. Finish the settings before you
# hand them over: `setOptimizerLocation` **copies** them. `setWeightLocation`, `setAccumulatorLocation` and
# `setActivationLocation` take the same settings.
#
# **Exercise 2** (8 min). Write `place(options)` so that an update is as fast as possible and the model's verdict is
# "fits". (It leaves room for the model's error: "too close to call" is not enough here.) Count the tensors first: which
# sizes does ResNet-101 have? The check profiles your program and compares it with the best placement of all.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def place(options):
### STARTER:     ...
def place(options):
    settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
    settings.minElementsForOffChip(2_000_000)
    options.TensorLocations.setOptimizerLocation(settings)
### END SOLUTION
lesson.check(2, place, using=on_chip)

# %% [markdown] tags=["hint"]
# `Counter(weight.numel() for weight in torchvision.models.resnet101().parameters())` counts the sizes. Begin with the
# largest: how low must the threshold be? `program(place).profile()` shows what your placement does.

# %% [markdown] tags=["solution"]
# Five tensors have two million elements or more, 11 million in all, and all of them are on IPU 1. Moving their 90 MB
# of state is enough: 611 KiB and 58.3 ms, 18 % longer than on the chip. If the classifier's 2,048,000 elements stay,
# too, it is too close to call.

# %% [markdown]
# You can be sure which of two such placements is faster, because one moves fewer bytes than the other. The times
# themselves are not certain, and the best placement leaves only 13 KiB of a tile free. On hardware, leave more room.
#
# ## Accumulate until the copies hardly matter
#
# The copies take the same time in every update, whatever the accumulation. The more micro-batches an update has, the
# rarer the copies are.

# %%
show_accumulations(resnet, (3, 8, 16, 32, 64, 128))
lesson.explore(resnet, accumulation=8)
show_price(resnet)

# %% [markdown]
# **Exercise 3** (5 min). All of AdamW's state is off the chip. What is the smallest `accumulation` at which the copies
# take at most 10 % of the device time? Compute it from the table, and check it with the explorer. Then choose **SGD
# with momentum** in the explorer: what is the smallest accumulation at which an update takes at most 5.0 % longer than
# on the chip (`with_momentum`)?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: accumulation = ...
### STARTER: with_momentum = ...
accumulation = 57
with_momentum = 63
### END SOLUTION
lesson.check(3, accumulation, with_momentum)

# %% [markdown] tags=["hint"]
# *m* micro-batches and one update take *5.66 m + 40.2* ms, and 35.8 of them are copies.

# %% [markdown] tags=["solution"]
# *35.8 / (5.66 m + 40.2) = 0.1* gives *m = 56.1*. "A tenth of the time" and "a tenth longer" are different: at 57, an
# update of AdamW is 11 % longer.

# %% [markdown]
# ## Move something else
#
# **Predict:** the weights are half as large as the state, 179 against 356 MB. If you move the weights instead, how
# many milliseconds does an update with accumulation 8 take? (With the state it was 85.1.)

# %% tags=["prediction"]
moved = lesson.predict("milliseconds of an update with the weights off the chip", ...)

# %%
def elsewhere(group):
    def place_group(options):
        settings = poptorch.TensorLocationSettings().useOnChipStorage(False)
        getattr(options.TensorLocations, f"set{group}Location")(settings)
    return program(place_group).profile()

groups = {group: elsewhere(group) for group in ("Optimizer", "Weight", "Accumulator", "Activation")}
moved.reveal(1e3 * groups["Weight"].device_seconds_per_call, "modelled")
place_table(groups)

# %% [markdown]
# Each of eight micro-batches reads the weights twice, forward and backward, and the update reads and writes them: 18
# trips of 179 MB instead of two of 356. Accumulators fare as badly, because every backward pass reads and writes them.
# Activations are smaller here, but each of them goes out and comes back for every micro-batch. (PopART may refuse or
# ignore the last three in a pipeline.)
#
# So ask **how often** a tensor is used before you ask how large it is, and offload what is needed once per update.
#
# ## Turn offloading off again
#
# Where a tensor lives does not change its values, so the results stay the same. The next cell shows that by training
# for real. You can therefore choose freely: where a program fits without offloading, turn it off [2]. Ours fits in
# 16 bits.

# %%
place_table({"32 bits, all state off": off_chip, "16 bits, all state off": program(all_state, half).profile(),
             "16 bits, all on the chip": program(dtype=half).profile()})

def losses(place):  # four epochs of the small network, from the same first weights
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    place(options)
    torch.manual_seed(1)
    network = WithLoss(SmallNetwork())
    model = poptorch.trainingModel(network, options, AdamW(network.parameters(), lr=0.002))
    loader = poptorch.DataLoader(options, shapes, batch_size=16)
    return [train_epoch(model, loader).loss for _ in range(4)]

on, off = losses(lambda options: None), losses(all_state)
agree = torch.allclose(torch.tensor(on), torch.tensor(off), rtol=1e-3)
print("losses with the state on and off the chip agree:", agree)
print("the loss falls from the first to the last epoch:", off[-1] < off[0])

# %% [markdown]
# Half precision is the better cure here, if your training tolerates it ([lesson 01](01)): the program then fits without
# copies and trains several times as many images per second. Offloading is for programs with many parameters and much
# accumulation.
#
# ## Share the state out over replicas
#
# **Replicas** are copies of the program on other IPUs, and all of them would hold the same state. **Replicated tensor
# sharding** gives each replica one part. A replica receives the summed gradients of its part (*reduce-scatter*),
# updates the weights that belong to it, and collects the others (*all-gather*). Together this takes about as long as
# the *all-reduce* that replicas need anyway. Tensors with fewer than 8,192 elements stay whole by default.
#
# **Exercise 4** (4 min). Write `options` for 4 replicas with accumulation 8 that share out the optimiser's state and
# copy nothing to streaming memory. The cell after it shows whether the program in 32 bits then fits.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: options = ...
options = poptorch.Options()
options.replicationFactor(4)
options.Training.gradientAccumulation(8)
options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useReplicatedTensorSharding(True))
### END SOLUTION
lesson.check(4, options)

# %% [markdown] tags=["hint"]
# `TensorLocationSettings` keeps tensors on the chip unless you say otherwise. Which of its methods gives parts?

# %% [markdown] tags=["solution"]
# The settings are complete before they are handed over. What you change in them later has no effect.

# %%
show_sharding(resnet, replicas=(2, 4, 8), machine="POD16")

# %% [markdown]
# With the state in parts, the program fits on the chip, and an update takes as long as with whole states (modelled).
# Off the chip, whole states take longer with replicas than without, because the replicas of one machine share its
# streaming memory. With parts, each replica copies only its own, so more machines mean shorter copies.
#
# ## Summary
#
# * Momentum keeps one tensor for each weight, Adam two. Only the update needs them.
# * Off the chip, they cost two trips per update: bytes x 2 / rate, whatever the accumulation.
# * A threshold moves the few large tensors and leaves the many small ones: here, 61 KiB for 9 ms an update.
# * More accumulation makes the copies rarer. Weights and accumulators are needed too often to be moved.
# * With replicas, sharding saves the same memory without copies.
#
# **Takeaway:** offload when the state is what does not fit, move as little as possible, and go back when you can.
#
# Your predictions and checks: `python -m ipu_course report`.
#
# ## On real hardware
#
# The options are the same. PopVision shows each tile's memory and StreamCopyMidRemoteBuffer: trust its times, as ours
# rest on an estimate. A C600 card probably has no streaming memory of its own (*estimated* in `machines`). PopART may
# ignore a request to offload when it finds no good moment for the copies.
#
# ## What transfers
#
# DeepSpeed's ZeRO [3] does the same on GPUs: stage 1 shards the state over replicas, and ZeRO-Offload keeps it in the
# host's memory. PyTorch has `ZeroRedundancyOptimizer`.
#
# ## References
#
# 1. IPU hands-on training workshop, day 03 (2022): ResNet-101 on two Mk2 IPUs, out of memory in 32 bits.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.4.4, 4.7 and 5.4.
# 3. Rajbhandari et al., *[ZeRO](https://arxiv.org/abs/1910.02054)*, 2020.
#
# **Next:** You have tuned one program; now you read a whole table of programs and ask which of its numbers to believe.
