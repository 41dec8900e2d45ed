# %% [markdown]
# # Numerics, layer by layer
#
# A network reads digits from two sensors. In fp32 it gets about 90 % of the test digits right, in fp16 about **65 %**.
# Its loss falls, all numbers are finite, and nothing warns you. The loss is one number for the whole network, and so is
# the histogram of all gradients in [lesson 01](01). Neither can tell you which layer is at fault.
#
# In this lesson you look into each layer while it trains. You will find two layers that hardly learn, for two different
# reasons, and mend them until fp16 reaches 90 % as well.
#
# *Plan 70 minutes, 34 of them for the exercises; the notebook itself runs in under one. Before it: lessons 01 and 07.*
#
# You will
#
# * fetch every layer from a running training,
# * draw fp16's range under each layer,
# * choose the loss scaling from the gradients,
# * find layers that stand still, and decide what stays in fp32,
# * write stochastic rounding yourself,
# * test layers against float64.

# %%
import copy
import inspect

import torch

import poptorch
from ipu_course import show
from ipu_course.lessons.numerics_layer_by_layer import (
    LAYERS, LEARNING_RATE, SensibleUnits, TwoSensors, calls, faults_found, half_ulp, in_half, lesson, mended,
    mended_but_unit, movement_rows, outcome_rows, range_figure, range_shares, scaling_for, show_faults, show_losses,
    show_movement, train, training_options)

torch.set_num_threads(1)
half, single = torch.float16, torch.float32

# %% [markdown]
# ## Meet a training that fails silently
#
# One sensor sees the upper 12 rows of each digit and gives **counts** from 0 to 4,095. The other sees the lower 16 rows
# and gives **volts** from 0 to 0.002. Such units are common, and this network copes with them in fp32: the first
# weights of `lower` are between 16 and 32 (positive or negative), so that millivolts become outputs of up to 1. Then
# `UnitLength` scales the output of each sensor's layer to length 1. It computes in fp32 inside, as lesson 01 advises,
# and so does the loss. The loss has a weight of 0.01, because other tasks will be added later.

# %%
print(inspect.getsource(TwoSensors.forward))
trainings = {"32.32": train(TwoSensors(), single), "16.16": train(TwoSensors().half(), half)}
show_losses(trainings, "In fp16 the loss falls too, but it levels off much earlier.")
show.table(outcome_rows(trainings), index="training")

# %% [markdown]
# ## Fetch every layer from a running training
#
# PopTorch can hand you every tensor of the graph. `getTensorNames()` lists the names, and `anchorTensor` asks for one
# ([lesson 07](07)). Three kinds of names matter here: an op's result, such as `upper/Gemm:0`; a gradient, which begins
# with `Gradient___`; and a parameter after its update, which begins with `UpdatedVar___`.
#
# We train in **fp32** for one epoch and look at the last of its 100 updates. Why not in fp16? There, a gradient that
# has underflowed is zero, and you could not see how large it should have been.

# %%
names = {"weights": "{}.weight", "activations": "{}/Gemm:0", "activation gradients": "Gradient___{}/Gemm:0",
         "weight gradients": "Gradient___{}.weight", "updated weights": "UpdatedVar___{}.weight"}
options, network = training_options(), TwoSensors()
for layer in LAYERS:
    for quantity, name in names.items():
        options.anchorTensor(f"{layer} {quantity}", name.format(layer))
optimizer = poptorch.optim.AdamW(network.parameters(), lr=LEARNING_RATE)
model = poptorch.trainingModel(network, options, optimizer)
for call in calls(single, epochs=1):
    model(*call)
values = {(layer, quantity): model.getAnchoredTensor(f"{layer} {quantity}") for layer in LAYERS for quantity in names}
model.destroy()
print(len(values), "tensors; activations of upper:", list(values["upper", "activations"].shape))

# %% [markdown]
# Anchored tensors cost memory and transfer, so fetch them for a few calls and not for a whole training. If the loss is
# scaled, so are the anchored gradients: divide them by the scaling before you compare.
#
# ## Draw fp16's range under each layer
#
# fp16 keeps 11 significant bits from 2^-14 up to 65,504: these are its **normal** numbers. Below, down to 2^-24, the
# **subnormal** numbers are all 2^-24 apart, so a value loses one bit with each power of two. From 2^-25 down, every
# value becomes zero. Above 65,504 it overflows, and an IPU most likely clips it.
#
# So count three shares of each tensor: what becomes zero, what loses digits and what overflows. Leave out values that
# are zero already in fp32, such as the gradients of black pixels and of inactive ReLUs: they are no loss.
#
# **Predict:** what percentage of the activation gradients of `upper` becomes zero in fp16?

# %% tags=["prediction"]
vanished = lesson.predict("per cent of upper's activation gradients that become zero", ...)

# %%
shares = range_shares(values["upper", "activation gradients"])
vanished.reveal(round(100 * shares.zero), "computed")
drawing = range_figure(values)
show.drawing(drawing, lesson.takeaway("ranges"))
lesson.tell("two_sensors")

# %%
lesson.explore(values)

# %% [markdown]
# The slider is the loss scaling. Choose a layer and a quantity, and see how much of it fp16 holds.
#
# **Exercise 1** (4 min). Of the slider's exponents, find the `smallest` with which less than 1 % of the activation
# gradients of `upper` become zero, and the `largest` with which no gradient of any layer overflows. Which layer would
# be the `first` to overflow, because it has the largest gradient of all?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: smallest = ...
### STARTER: largest = ...
### STARTER: first = ...
smallest = 12
largest = 24
first = "lower"
### END SOLUTION
lesson.check(1, smallest, largest, first)

# %% [markdown] tags=["hint"]
# Start with `upper`. Then go through both kinds of gradients of all four layers at one setting, and compare the column
# "largest".

# %% [markdown] tags=["solution"]
# The window is wide here, 2^12 to 2^24. Its lower end comes from `upper`, its upper end from `lower`. In a network
# whose layers differ even more, no single scaling would serve all of them.

# %% [markdown]
# ## Choose the loss scaling from the gradients
#
# Within the window, which scaling is best? The larger it is, the more small gradients keep their digits, so take the
# largest that is safe. Gradients change during training, so leave **headroom**: some powers of two between the largest
# gradient of today and 65,504. And take a power of two, because it rounds nothing.
#
# **Exercise 2** (7 min). Write `choose_scaling(gradients, headroom)`. `gradients` is a list of tensors, one for each
# layer or quantity, not scaled. Return the largest power of two with which every gradient, multiplied by the scaling
# and then by 2^headroom, is at most 65,504. It may be less than 1. If all gradients are zero, return 1. The check uses
# eight distributions, and some of them are meant to trick you.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def choose_scaling(gradients, headroom):
### STARTER:     ...
def choose_scaling(gradients, headroom):
    largest = max(each.abs().max().item() for each in gradients)
    if largest == 0:
        return 1.0
    scaling = 1.0
    while largest * scaling * 2 ** headroom <= 65504:
        scaling *= 2
    while largest * scaling * 2 ** headroom > 65504:
        scaling /= 2
    return scaling
### END SOLUTION
lesson.check(2, choose_scaling)

# %% [markdown] tags=["hint"]
# Only the largest absolute value of all tensors matters. Is 65,504 a power of two? A loop that doubles and halves
# avoids the pitfalls of logarithms.

# %% [markdown] tags=["solution"]
# In one line: `2.0 ** (math.floor(math.log2(65504 / largest)) - headroom)`. Single outliers decide, and here they
# should: an IPU most likely clips what overflows, and does not tell you. GPUs get by without this function:
# `GradScaler` raises the scaling until something becomes infinite or NaN, and then steps back.

# %% [markdown]
# Now train with your function's choice, with five powers of two as headroom.
#
# **Predict:** what percentage of the test digits does fp16 get right now, to the nearest five? (fp32: about 90.)

# %% tags=["prediction"]
scaled = lesson.predict("per cent right in 16.16 with loss scaling, to the nearest five", ...)

# %%
scaling = scaling_for(choose_scaling, values, headroom=5)
print(f"loss scaling: 2^{torch.tensor(scaling).log2():.0f}")
trainings["16.16, scaled"] = train(TwoSensors().half(), half, loss_scaling=scaling)
scaled.reveal(5 * round(trainings["16.16, scaled"].accuracy / 5), "computed")
show_movement(trainings, lesson.takeaway("movement"))
lesson.tell("movement_drawn")
show.table(movement_rows(values), index="layer")

# %% [markdown]
# ## Find layers that stand still, and decide what stays in fp32
#
# The last table has the facts of the record above (no scaling). AdamW divides each gradient by its usual size, so its
# updates are of the order of the learning rate, whatever the scaling is. An fp16 weight changes only if its update is
# more than **half an ulp** (the distance to the next fp16 number), and this distance grows with the weight.
#
# What can stay in fp32, and what does it cost?
#
# | what | how | its price |
# |---|---|---|
# | an op: norm, softmax, loss | `x.float()` before it, `.to(x.dtype)` after it | time, and memory for a moment |
# | the weights of a layer | `layer.float()`: PopTorch computes in the input's type, fp16 | 2 more bytes a weight |
# | optimiser state | PopTorch's default ([lesson 01](01)) | 4 bytes a number |
#
# **Exercise 3** (7 min). Name the cause for each layer in the *unscaled* 16.16 training: `learns`, `gradients become
# zero`, `updates are lost` or `activations overflow`. Then write `mend(network)`. It gets a `TwoSensors` in fp32, casts
# it to fp16 except for the weights that must stay in fp32, and returns it. The check looks at the types and trains your
# network with a loss scaling of 2^20. Your score is the size of its weights.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: causes = {"upper": ..., "lower": ..., "mix": ..., "head": ...}
### STARTER: def mend(network):
### STARTER:     ...
causes = {"upper": "gradients become zero", "lower": "updates are lost", "mix": "learns", "head": "learns"}
def mend(network):
    network.half()
    network.lower.float()
    return network
### END SOLUTION
lesson.check(3, causes, mend, using=trainings["32.32"])

# %% [markdown] tags=["hint"]
# Loss scaling helps where gradients become zero. It cannot help where the update is too small for the weight. Which
# layer's update is below half an ulp? `half()` and `float()` work on a whole network and on a single layer.

# %% [markdown] tags=["solution"]
# `network.half()` and then `network.lower.float()`. Weights of 16 to 32 are 1/64 apart in fp16, and AdamW's updates are
# about 0.001. Even `network.lower.weight.data = network.lower.weight.data.float()` is enough, because the bias is
# small.

# %% [markdown]
# You have found the causes from figures alone. The best cure stands outside the table: **give the layers sensible
# units**, with inputs between 0 and 1 and the usual first weights. The next table will show what that is worth. You
# cannot always do it, though: a trained network comes with its weights, and fine-tuning has small updates everywhere.
#
# ## Write stochastic rounding yourself
#
# There is a way to keep all weights in fp16. In the layer whose updates are lost, more than 99 % of them are below half
# an ulp, and rounding to the nearest number loses these. **Stochastic rounding** lets chance decide: 24.003 lies
# between 24 and 24.015625, and it becomes 24.015625 in about 19 % of all cases. A single weight is less exact, but on
# average no update is lost. Lesson 01 showed the effect; now you write it.
#
# **Exercise 4** (8 min). Write `round_stochastically(x, generator)` in plain PyTorch: fp32 tensor in, fp16 tensor of
# the same shape out. Each element becomes one of its two fp16 neighbours, the upper one with a probability of its
# distance from the lower one, divided by the distance of the two. fp16 numbers stay what they are. Draw one random
# number for each element, from `generator`. The check rounds 20,000 copies of eight values, with fixed seeds. (Values
# beyond 65,504 do not occur.)

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def round_stochastically(x, generator):
### STARTER:     ...
def round_stochastically(x, generator):
    _, exponent = torch.frexp(x)  # x is between 2^(exponent - 1) and 2^exponent
    spacing = torch.ldexp(torch.ones_like(x), exponent.clamp(min=-13) - 11)
    lower = torch.floor(x / spacing) * spacing
    chance = (x - lower) / spacing
    up = torch.rand(x.shape, generator=generator) < chance
    return (lower + up * spacing).half()
### END SOLUTION
lesson.check(4, round_stochastically)

# %% [markdown] tags=["hint"]
# From 2^e to 2^(e+1), fp16 numbers are 2^(e-10) apart, and below 2^-14 they are 2^-24 apart. `torch.frexp` gives exact
# exponents. `torch.floor(x / spacing) * spacing` is the lower neighbour, for negative values, too.

# %% [markdown] tags=["solution"]
# Everything but the draw is exact here, because `spacing` is a power of two. With integers it is shorter: add 13 random
# bits to the 13 bits that fp16 has no room for, and cut them off.

# %%
trainings["16.16, scaled, lower in fp32"] = train(mended(), half, loss_scaling=scaling)
trainings["16.16, scaled, stochastic"] = train(
    TwoSensors().half(), half, loss_scaling=scaling, stochastic_rounding=True)
trainings["lower in fp32, but UnitLength in fp16"] = train(mended_but_unit(), half, loss_scaling=scaling)
trainings["16.16, sensible units"] = train(SensibleUnits().half(), half)
show.table(outcome_rows(trainings), index="training")

# %% [markdown]
# Both cures bring fp16 back to the accuracy of fp32. The last two rows are for comparison. `UnitLength` really has to
# compute in fp32: its squares overflow in fp16. And the network with sensible units needs no cure at all, and gets
# more digits right than fp32 does with the awkward ones.
#
# `options.Precision.enableStochasticRounding(True)` takes no additional bytes, and on an IPU no time [2]. (The IPU
# Model rounds stochastically in the weight update only. On hardware, every fp16 result is rounded this way, so switch
# it off for inference.) fp32 weights are repeatable without a seed, and exact.
#
# ## Test layers against float64
#
# All faults so far came from values that a layer really gets. You can look for others *before* you train, with a unit
# test for each layer: run it in fp16 and in float64 on the same inputs, and compare.
#
# How much may they differ? Each operation that rounds errs by up to half an ulp of its result. After *n* such
# operations one after another, allow *n* half ulps **of the largest exact output**. Small outputs next to large ones
# often come from sums in which large values cancel, and they inherit the errors of those. This is a rule of thumb: it
# holds as long as no operation magnifies the errors of those before it.
#
# Somebody planted faults in four layers: a softmax that does not subtract the maximum,
# a mean that divides after the whole sum, a variance as *mean of squares minus square of the mean*, and vectors scaled
# to length 1 without care for small squares.
#
# **Predict:** how many of the four faulty layers fail such a test if the inputs come from `torch.randn`?

# %% tags=["prediction"]
found = lesson.predict("faulty layers that fail the test, of four, with inputs from torch.randn", ...)

# %%
found.reveal(faults_found(), "computed")
show_faults()
lesson.tell("inputs")

# %% [markdown]
# **Exercise 5** (8 min). Write this test: `check_layer(layer, inputs, roundings)` returns True if each output of the
# layer in fp16 is at most `roundings` half ulps of the largest exact output away from float64's. `inputs` is fp16, and
# so are the layer's weights, if it has any. `in_half(layer, inputs)` runs a copy of the layer with poptorch in fp16,
# and `half_ulp(tensor)` gives half an ulp at each value. The check tries your test on nine right and six wrong pairs of
# layer and inputs.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def check_layer(layer, inputs, roundings):
### STARTER:     ...
def check_layer(layer, inputs, roundings):
    exact = copy.deepcopy(layer).double()(inputs.double())
    difference = (in_half(layer, inputs).double() - exact).abs()
    return bool((difference <= roundings * half_ulp(exact.abs().max())).all())
### END SOLUTION
lesson.check(5, check_layer)

# %% [markdown] tags=["hint"]
# `layer.double()` changes the layer itself, so copy it first: `copy.deepcopy(layer)`. What does your comparison say if
# an output is NaN?

# %% [markdown] tags=["solution"]
# `all(difference <= tolerance)` fails for NaN, and `not any(difference > tolerance)` passes it. A fixed tolerance such
# as 0.01 is too wide for the probabilities of a softmax, and too narrow for a mean of 1,000.

# %% [markdown]
# ## Summary
#
# * Fetch weights, activations and both kinds of gradients of each layer, in fp32, and draw fp16's range under them.
# * Activation gradients can vanish in one layer although its weight gradients look harmless.
# * Choose the loss scaling from the largest gradient of all layers, with headroom.
# * Scaling does not help weights whose updates are below half an ulp. Keep these weights in fp32, or round
#   stochastically.
# * Draw how far the weights of each layer have moved. The loss does not show a layer that stands still.
# * Test each layer against float64, with a tolerance in ulps and inputs as large as those of your network.
#
# **Takeaway:** from 65 to 90 % with two changes, and each of them was decided by looking at a single layer.
#
# ## On real hardware
#
# This lesson has no modelled times or bytes: each result comes from a training or a layer that really ran in fp16 or
# fp32. On a machine with the SDK the same cells train on IPUs, and anchors, loss scaling, types of layers and
# stochastic rounding are PopTorch's own. Hardware orders its sums in another way, so last digits differ, and with
# stochastic rounding more than the last ones. Names of ops can differ between versions, so print `getTensorNames()`
# first. Graphcore's guide recommends the same three things, loss scaling, stochastic rounding, and distributions "in
# all layers" [1]; the procedure is this course's own. The sensors are constructed, but such scales are not: think of
# prices in cents beside rates, or of a network's embeddings beside its norms.
#
# ## What transfers
#
# On GPUs, `torch.autocast` chooses types per op, master weights stay in fp32, and `GradScaler` finds the scaling [3].
# They prevent both faults, at 4 to 6 bytes per weight. Hooks replace anchors. bfloat16 has no underflow here, but its
# half ulp is eight times as large, so more updates are lost: stochastic rounding matters even more.
#
# ## References
#
# 1. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.6.
# 2. Graphcore, *AI-Float: mixed precision arithmetic for AI*, white paper.
# 3. Micikevicius et al., *[Mixed Precision Training](https://arxiv.org/abs/1710.03740)*, 2017.
#
# **Next:** You can make a program fit, fast and right; now do all three at once.
