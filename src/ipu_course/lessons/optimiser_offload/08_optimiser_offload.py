# %% [markdown]
# # Optimiser state: on the chip or off it
#
# *Plan 50 minutes, 15 of them for the exercises; the notebook itself runs in under one. Before it: lessons 01
# and 06.*
#
# An optimiser remembers something about every parameter. It fills memory all the time, and is used once in a
# while. Moving it off the chip makes room, and costs time. You will
#
# * count an optimiser's state,
# * move it off the chip, and say what moves when,
# * find the copies in the profile,
# * make a program fit that did not, and know when to turn offloading off again,
# * show that results stay the same, and see what not to move,
# * share the state out over replicas.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.optimiser_offload.checks import check_bytes, check_options, check_rare_copies
from ipu_course.lessons.optimiser_offload.explorer import explore_offload
from ipu_course.lesson import Lesson
from ipu_course.loops import train_epoch
from ipu_course.models import SmallNetwork, WithLoss
from ipu_course.lessons.optimiser_offload.views import copies_share, show_accumulations, show_places
from ipu_course.lessons.optimiser_offload.views import show_sharding, state_bytes

lesson = Lesson("08")
torch.set_num_threads(1)

# %% [markdown]
# ## Count an optimiser's state
#
# The **state** is what an optimiser keeps from one weight update to the next. SGD with momentum keeps a running
# mean of the gradients; Adam, AdamW and LAMB keep two **moments**: of the gradients and of their squares. Each is
# as large as the weights, and in 32 bits unless you say otherwise. Beside it there is the **accumulator**, the
# sum of the gradients so far. It is not state: every update empties it.
#
# After a call, `optimizer.state_dict()` reads the state back. So we train a small network, once with each.
#
# **Predict:** how many bytes of state has a parameter with AdamW?

# %%
def trained_state(make_optimizer):
    torch.manual_seed(1)
    network = WithLoss(SmallNetwork())
    optimizer = make_optimizer(network.parameters())
    options = poptorch.Options().showCompilationProgressBar(False)  # keeps this page tidy
    options.Training.gradientAccumulation(4)
    model = poptorch.trainingModel(network, options, optimizer)
    shapes = colour_shapes(train=True, images=32)
    model(shapes.pixels.float() / 255, shapes.labels)
    states = optimizer.state_dict()["ipu_state"]
    model.detachFromDevice()
    return state_bytes(states, sum(weight.numel() for weight in network.parameters()))

# %%
guess = lesson.predict("bytes of state of one parameter with AdamW", ...)

optim = poptorch.optim
found = {
    "SGD": lambda weights: optim.SGD(weights, lr=0.01),
    "SGD with momentum": lambda weights: optim.SGD(weights, lr=0.01, momentum=0.9),
    "AdamW": lambda weights: optim.AdamW(weights, lr=0.001),
    "AdamW, first moment 16 bits": lambda weights: optim.AdamW(
        weights, lr=0.001, first_order_momentum_accum_type=torch.float16)}
found = {name: trained_state(make) for name, make in found.items()}
show.table([{"optimiser": name, "tensors for each weight": tensors, "bytes of state a parameter": f"{size:g}"}
            for name, (tensors, size) in found.items()], index="optimiser")
guess.reveal(found["AdamW"][1], "returned by state_dict()")

# %% [markdown]
# Plain SGD keeps nothing: its update needs the gradients alone. Momentum takes a tensor, Adam two, and a moment in 16
# bits half the bytes.
#
# **Exercise 1** (5 min). The hands-on [1] of lessons 01 to 05 has 16-bit weights and accumulators, and AdamW with
# a 16-bit first and a 32-bit second moment. How many bytes of a parameter leave the chip if the state does? And
# how many megabytes (millions of bytes) does one weight update of 10 million parameters copy?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: bytes_off_chip = ...
### STARTER: megabytes_moved = ...
bytes_off_chip = 2 + 4
megabytes_moved = 120
### END SOLUTION
check_bytes(bytes_off_chip, megabytes_moved)

# %% [markdown] tags=["hint"]
# Weights and accumulators stay. In an update, the state has to change.

# %% [markdown] tags=["solution"]
# The moments have 2 and 4 bytes. They are read, updated and written back: 10 million x 6 bytes x 2 = 120 MB.

# %% [markdown]
# ## Move it off the chip
#
# Beside its IPUs, an IPU-M2000 has ordinary memory chips: **streaming memory**. It is large and slow. The state is
# needed in the weight update only; with gradient accumulation, that is once in many micro-batches. One option
# moves it. It then lives in **remote buffers**: for each update, the IPU reads them, computes, and writes them back.
#
# **The default** of PopTorch is on the chip, with accumulation and pipelines too. (The phased strategies start
# off the chip; so did TensorFlow for the IPU as soon as it accumulated. Look before you believe.)
#
# Full size: the hands-on's ResNet-101 over two IPUs, micro-batch 64, 16 bits, accumulation 8.

# %%
def resnet101(dtype, images, options, **types):
    model = torchvision.models.resnet101().to(dtype)
    poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # the second pipeline stage begins here
    optimizer = poptorch.optim.AdamW(model.parameters(), **types)
    return engine.modelled_module(
        models.ClassifierWithLoss(model), ladder.micro_batch(dtype, images), options, optimizer)

options = poptorch.Options()
options.Training.gradientAccumulation(8)
in_16_bits = {"accum_type": torch.half, "first_order_momentum_accum_type": torch.half, "loss_scaling": 1000}
full_size = resnet101(torch.half, 64, options, **in_16_bits)
on_chip = full_size and full_size.profile()  # nothing said: the default
if on_chip:
    print("bytes off chip by default:", on_chip.memory.off_chip_bytes)

# %% [markdown]
# With the option set, `options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings()
# .useOnChipStorage(False))`, the model is the same. Below, the IPU Model asks "what if" instead.
#
# ## Find the copies in the profile
#
# PopVision's execution trace calls the copies **StreamCopyMidRemoteBuffer**. The guide [2] says: look at their share
# of the cycles of one update, and if it is large, turn offloading off again.
#
# **Predict:** the per cent of the device time that the copies take here.

# %%
guess = lesson.predict("per cent of the device time that copies of state take", ...)

off_chip = full_size and full_size.profile(optimiser_off_chip=True)
show.timeline(off_chip)
guess.reveal(copies_share(off_chip), "modelled", "none for this model; more than 58 % in the guide's example, "
             "another model [2]")

# %% [markdown]
# The copies stand at the end, in the update, and nowhere else. While they run, no tile computes. How sure is that?
# No speed of streaming memory is published: the model's is an estimate, and its band is wide.

# %%
show_places({"on chip": on_chip, "off chip": off_chip})
if off_chip:
    low, high = off_chip.error_band
    print(f"the time off chip may be {low:.2f} to {high:.2f} times the modelled one")
    print(off_chip.notes[0])

# %% [markdown]
# Memory is saved where the state is: most on IPU 1, which has the widest layers.
#
# ## Make a program fit
#
# Here both programs fit, so offloading only costs. It pays where the state is what is too much. In 32 bits the
# hands-on ran out of memory [1]. Half the micro-batch is not enough. And off the chip?

# %%
in_32_bits = resnet101(torch.float32, 32, options)
show_places({f"{place} chip": in_32_bits and in_32_bits.profile(optimiser_off_chip=off)
             for place, off in (("on", False), ("off", True))})

# %% [markdown]
# No result is published for this setting. Compare with other ways to the same end: half precision, which is faster
# too, or a smaller micro-batch.
#
# ## Know when to turn it off again
#
# The copies' time depends on the bytes of state alone, not on the accumulation. So more accumulation makes them
# rarer. The rule: offload if you must; then accumulate as much as learning allows; and if memory is free again
# (half precision, more IPUs, a smaller micro-batch), go back to the chip.

# %%
show_accumulations(full_size, (3, 8, 16, 32, 64, 128))

# %%
explore_offload(full_size)

# %% [markdown]
# **Exercise 2** (5 min). Suppose a micro-batch takes 4 ms, an update's other work 8 ms, and the copies of state 40
# ms. Which is the smallest accumulation with which copies take at most a fifth of the whole time?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: accumulation = ...
accumulation = 38
### END SOLUTION
check_rare_copies(accumulation)

# %% [markdown] tags=["hint"]
# The whole time of an update of *m* micro-batches is *4 m + 8 + 40* ms.

# %% [markdown] tags=["solution"]
# A fifth of the whole is 40 ms, so the whole is 200 ms: *4 m = 200 - 48*, *m = 38*.

# %% [markdown]
# ## Show that results stay the same
#
# A place is not a number: the update computes with the same values. Two trainings from the same first weights, one
# with its state on the chip and one off it:

# %%
def train(on_chip):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Training.gradientAccumulation(4)
    options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(on_chip))
    torch.manual_seed(1)
    network = WithLoss(SmallNetwork())
    model = poptorch.trainingModel(network, options, optim.AdamW(network.parameters(), lr=0.002))
    loader = poptorch.DataLoader(options, colour_shapes(train=True, images=640), batch_size=16)
    return [train_epoch(model, loader).loss for _ in range(4)]

losses = {"on chip": train(True), "off chip": train(False)}
figures.show(figures.curves_figure([1, 2, 3, 4], losses, "epoch", "loss", "Trained with state on and off the chip"),
             "Loss against epoch, two lines that lie on each other: both fall over four epochs in the same way.")
print("the same losses?", torch.allclose(*map(torch.tensor, losses.values()), rtol=1e-3),
      "- and they fell?", losses["off chip"][-1] < losses["off chip"][0])

# %% [markdown]
# ## See what not to move
#
# `setWeightLocation`, `setAccumulatorLocation` and `setActivationLocation` do the same for other tensors. Which of
# them hurt? Ask how often each is used. The small network again, accumulation 16:

# %%
network = WithLoss(SmallNetwork())
shapes = colour_shapes(train=True, images=16)
rows = []
for name in ("Optimizer", "Weight", "Accumulator", "Activation"):
    elsewhere = poptorch.Options()
    elsewhere.Training.gradientAccumulation(16)
    off = poptorch.TensorLocationSettings().useOnChipStorage(False)
    getattr(elsewhere.TensorLocations, f"set{name}Location")(off)
    micro_batch = (shapes.pixels.float(), shapes.labels)
    profile = engine.profile_module(network, micro_batch, elsewhere, optim.AdamW(network.parameters()))
    if profile:
        rows.append({"off chip": name, "copies, of the device time": f"{profile.shares['offload']:.0%}"})
show.table(rows) if rows else print(engine.NOT_HERE)

# %% [markdown]
# The state moves once in 16 micro-batches; weights and accumulators move for each of them. Move what is used once
# per update; leave what every micro-batch needs, unless nothing else fits.
#
# ## Share the state out over replicas
#
# A **replica** is a copy of the whole program on IPUs of its own; at the update, replicas add up their gradients
# (**all-reduce**). All of them then hold the same state. **Replicated tensor sharding** lets each hold and update a
# part only: gradients are added up in parts (reduce-scatter), and the new weights are put together again
# (**all-gather**). Both together are about one all-reduce, so the model finds hardly any loss. Tensors below 8,192
# elements stay whole.

# %%
show_sharding(full_size, replicas=(2, 4, 8), machine="POD16")

# %% [markdown]
# With replicas, parts on the chip cost less than any copy. Parts off the chip combine both: each replica streams
# its own.
#
# **Exercise 3** (5 min). Write `options` for 4 replicas with accumulation 16, whose optimiser state is off the chip
# and in parts. Everything else stays on the chip. Careful: `setOptimizerLocation` copies the settings when called.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: options = ...
settings = poptorch.TensorLocationSettings().useOnChipStorage(False).useReplicatedTensorSharding(True)
options = poptorch.Options()
options.replicationFactor(4)
options.Training.gradientAccumulation(16)
options.TensorLocations.setOptimizerLocation(settings)
### END SOLUTION
check_options(options)

# %% [markdown] tags=["hint"]
# A `TensorLocationSettings` has a method for each of the two wishes, and each returns the settings.

# %% [markdown] tags=["solution"]
# The settings are complete before they are handed over; what is changed in them later has no effect.

# %% [markdown]
# ## Summary
#
# * Momentum is one tensor of state, AdamW has two: 4 to 8 bytes for each parameter.
# * Off the chip, the state moves in and back once per update. The share of the copies tells what it costs.
# * More accumulation makes the copies rarer. Sharding over replicas needs none.
#
# Offload when it is the state that does not fit, and go back when it does.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# The options are the same. PopVision's memory report shows what the tiles hold, its execution trace the share of
# StreamCopyMidRemoteBuffer: measure that, as the modelled copies are an estimate. A C600 card has no streaming memory.
#
# ## What transfers
#
# DeepSpeed's ZeRO [3] is the same on GPUs: stage 1 shards the state over replicas, ZeRO-Offload keeps it in the
# host's memory. So does PyTorch's `ZeroRedundancyOptimizer`.
#
# ## References
#
# 1. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs, out of memory in 32 bits.
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 4.4.4, 4.7 and 5.4.
# 3. Rajbhandari et al., *[ZeRO](https://arxiv.org/abs/1910.02054)*, 2020.
#
# **Next:** [lesson 09](09_cnn_benchmarks.ipynb), CNN benchmarks.
