# %% [markdown]
# # Half precision
#
# *Plan 60 minutes, 9 of them for the exercises; the notebook itself runs in under one. Before it: lesson 00.*
#
# In single precision (fp32, four bytes a number), the course's large network does not fit into two IPUs. In
# half precision (fp16, two bytes) it does. This lesson shows what is won, what can go wrong, and the cures.
# You will
#
# * choose among three precisions,
# * see where the memory goes, and meet the out-of-memory error,
# * run the matrix units faster,
# * train in each precision,
# * read the distribution of gradients, and scale the loss,
# * scale it too far, and compare a GPU with an IPU,
# * round stochastically,
# * keep accumulators and moments small,
# * keep sensitive parts in fp32.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.half_precision.checks import check_loss_scaling, check_norm
from ipu_course.digit_training import Digits, try_out
from ipu_course.lessons.half_precision.gradient_sizes import gradient_sizes, share_below
from ipu_course.lessons.half_precision.steady_updates import SteadyUpdates
from ipu_course.lessons.half_precision.explorer import explore_precision
from ipu_course.lesson import Lesson
from ipu_course.lessons.half_precision.views import show_paths, show_rates, show_tile_memory

lesson = Lesson("01")
torch.set_num_threads(1)

# %% [markdown]
# ## Choose among three precisions
#
# The names say bits of the data, then bits of the model [1]:
#
# * **32.32**: all in fp32.
# * **16.32**: fp16 data, fp32 weights. Plain PyTorch refuses to mix the two; in PopTorch, a layer computes in
#   the type of its *input*. So activations and their gradients are fp16, and only the weights and their updates
#   stay fp32.
# * **16.16**: fp16 data, and `model.half()`.
#
# The program is that of the hands-on [1]: ResNet-101, cut by `BeginBlock` so that everything from `layer3[8]` on
# runs on a second IPU, 64 images of 64x64 in a micro-batch, three micro-batches to a weight update (gradient
# accumulation, lesson 02). In 16.16 its AdamW optimiser gets more settings: `recipe`.

# %%
half, single = torch.float16, torch.float32

def resnet():
    model = torchvision.models.resnet101()
    model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)
    return models.ClassifierWithLoss(model)

options = poptorch.Options()
options.Training.gradientAccumulation(3)
options.showCompilationProgressBar(False)  # keeps this page tidy
recipe = {"loss_scaling": 1000, "accum_type": half,
          "first_order_momentum_accum_type": half, "second_order_momentum_accum_type": single}

# %% [markdown]
# ## See where the memory goes
#
# A tile has 624 KiB. The next cell captures the program in each precision, without running it, and asks the
# IPU Model for its memory. (`ladder` holds the shapes of the workshop's program, and what it costs the host.)
#
# **Predict:** how many KiB does the fullest tile want in 32.32?

# %%
guess = lesson.predict("KiB on the fullest tile, 32.32", ...)

def modelled(module, data, **adamw):
    optimizer = poptorch.optim.AdamW(module.parameters(), **adamw)
    return engine.modelled_module(module, ladder.micro_batch(data), options, optimizer)

torch.manual_seed(0)
network, half_network = resnet(), resnet().half()
captured = {"32.32": modelled(network, single), "16.32": modelled(network, half),
            "16.16": modelled(half_network, half, **recipe)}
profiles = {name: program and program.profile(host=ladder.host()) for name, program in captured.items()}
base = profiles["32.32"]
guess.reveal(base and round(base.memory.max_tile_bytes / 1024), "modelled", "about 768 KiB (printed as kB) [1]")
show_tile_memory(profiles)

# %% [markdown]
# With fp16 data, activations shrink, and so do temporaries (working copies of single operations). But 16.32 keeps
# weights and optimiser state in fp32, and still does not fit. 16.16 halves the weights too, and with `recipe` what
# belongs to them. Code, with the plan of every exchange between tiles, stays. Published for 16.16: it fits, most
# tiles at 480 to 560 KiB [1].
#
# Is one tile too full, or all? And what does PopTorch say? It compiles the whole program before it runs, so
# the error comes then; on a real IPU, after minutes.

# %%
show.memory_per_tile(base)

optimizer = poptorch.optim.AdamW(network.parameters())
try:
    images, labels = ladder.micro_batch(single, size=3 * 64)
    poptorch.trainingModel(network, options, optimizer).compile(images, labels)
except poptorch.Error as error:
    print(str(error).split(" (")[0])
    print(*(part for part in str(error).split(". ") if part.startswith("What usually helps")))

# %% [markdown]
# Nearly every tile of both IPUs is over, so moving layers to the other IPU does not help: everything must
# shrink. Our cure is half precision.
#
# ## Run the matrix units faster
#
# Each tile has a matrix unit, called **AMP** (accumulating matrix product). It multiplies, and adds up
# **partial sums**. The fewer bits, the more it does in a cycle [2]. For fp16 inputs, PopTorch keeps partial
# sums in fp32, unless `setPartialsType` says otherwise. The table shows peak rates, and the relative error of
# sums of 4,096 products. (Published, 64 IPUs: 3.99 PFLOP/s in fp32, 15.98 in fp16 with half partials [3]; that
# is 62.4 and 249.7 TFLOP/s for one.)

# %%
layer, x = nn.Linear(4096, 64, bias=False), torch.randn(64, 4096)

def error(inputs, partials):
    options = poptorch.Options().showCompilationProgressBar(False)
    options.Precision.setPartialsType(partials)
    model = poptorch.inferenceModel(layer.to(inputs), options)
    with torch.no_grad():
        exact = nn.functional.linear(x.to(inputs).double(), layer.weight.double())
        relative = ((model(x.to(inputs)) - exact).norm() / exact.norm()).item()
    model.detachFromDevice()
    return f"{relative:.0e}" if relative > 1e-6 else "below 1e-06"

rates = {"fp32.fp32": (single, single, 16), "fp16.fp32": (half, single, 32), "fp16.fp16": (half, half, 64)}
show.table([{"inputs.partials": name, "multiply-adds a cycle, each tile": products,
             "TFLOP/s of an IPU": f"{2 * products * 1472 * 1.33e9 / 1e12:.1f}",
             "relative error": error(inputs, partials)}
            for name, (inputs, partials, products) in rates.items()])

# %% [markdown]
# The course approximates half partials: it rounds the running sum to fp16 after every 64 channels. How a
# device cuts its sums is not published.
#
# From 32.32 to 16.16, the matrix units double their rate; half partials double it again.
#
# **Predict:** how many times faster do the two IPUs train, 16.16 against 32.32?

# %%
guess = lesson.predict("times faster in 16.16 than in 32.32, the IPUs alone", ...)

program, fast = captured["16.16"], profiles["16.16"]
guess.reveal(fast and round(fast.device_samples_per_second / base.device_samples_per_second, 2), "modelled")
if fast:
    low, high = fast.error_band
    print(f"16.16 on hardware: {low:.2f} to {high:.2f} times the modelled time")
show_rates({**profiles, "16.16, half partials": program and program.profile(half_partials=True)})

# %% [markdown]
# Less than the units promise, above all with half partials: norms, exchange between tiles and waiting take their
# share. And 16.32 is nearly as fast as 16.16, because it computes in fp16 too. ("On hardware": the error band.)
#
# ## Train in each precision
#
# Now for real: a small network learns handwritten digits, and every result is rounded as fp16 does it. `Digits`
# gives logits and loss; `try_out` runs four epochs, then tests.

# %%
def train(data, model, loss_weight=1.0, **adamw):
    options = poptorch.Options()
    options.deviceIterations(5)
    options.Training.gradientAccumulation(2)
    options.outputMode(poptorch.OutputMode.All)  # to see every loss
    options.showCompilationProgressBar(False)
    network = Digits(loss_weight).to(model)
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=0.004, **adamw)
    training_model = poptorch.trainingModel(network, options, optimizer)
    return try_out(training_model, network, data, images_per_call=5 * 2 * 40)

trials = {"32.32": train(single, single), "16.32": train(half, single), "16.16": train(half, half),
          "16.16, recipe": train(half, half, **recipe)}
show.table([{"precision": name, "loss, last epoch": "below 0.5" if trial.losses[-1] < 0.5 else "more",
             "test accuracy": "above 90 %" if trial.accuracy >= 90 else "less"}
            for name, trial in trials.items()], index="precision")

# %% [markdown]
# The differences in the exact numbers are chance: for this network, fp16 works as it is. When does it not?
#
# ## Read the distribution of gradients
#
# fp16 has 11 significant bits between 2^-14 and 65,504. Below, digits get lost; under 2^-25, the whole number:
# it **underflows** to zero. Above, it **overflows**. Where are ResNet-101's gradients? The cell computes them in
# fp32, for eight images that count as much as in a micro-batch of 64.

# %%
sample = colour_shapes(train=True, images=8)
images = nn.functional.interpolate(sample.images, size=64)
gradients = gradient_sizes(network.model, images, sample.labels, batch_size=64)
activations, weights = gradients["activations"], gradients["weights"]
figures.show(
    figures.histogram_figure(
        {"activations": activations, "activations x 1000": 1000 * activations, "weights x 1000": 1000 * weights},
        "absolute gradient", "Gradients of ResNet-101 before training", log2=True,
        bands={"underflow": (-32, -25), "digits lost": (-25, -14), "overflow": (16, 20)}),
    "Share of gradients by powers of two. About a third of the activation gradients lie below two to the -14, "
    "where fp16 loses digits. Times 1000 nearly none do, and the largest weight gradients stay below overflow.")
for name, sizes in (("as they are", activations), ("x 1000", 1000 * activations)):
    print(f"activation gradients {name}: {share_below(sizes, -14):.0%} below 2^-14")

# %% [markdown]
# **Loss scaling** moves the gradients: PopTorch multiplies the loss by `loss_scaling`, so every gradient grows
# as much, and divides before the weight update. The loss that you see stays as it is.
#
# **Exercise 1** (4 min). Find another scaling than 1000, so that less than 1 % of these activation gradients lie
# below 2^-14, and no gradient overflows.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: loss_scaling = ...
loss_scaling = 2 ** 9
### END SOLUTION
check_loss_scaling(loss_scaling, gradients)

# %% [markdown] tags=["hint"]
# Read the figure from both ends. Try powers of two: they change no digit. The largest gradient belongs to the
# weights.

# %% [markdown] tags=["solution"]
# Everything from about 200 to 3000 does it. Powers of two only change the exponent, so they round nothing.

# %% [markdown]
# ## Scale the loss
#
# A surprise: the digits trained without. Their gradients are large enough. But many losses are small: a mean
# over all pixels of a picture, or a term with a small weight. We imitate it, and divide the loss by 2^18, the
# pixels of a 512x512 picture. AdamW divides a gradient by its usual size, so in fp32 this should hardly matter.
# What will 16.16 do, and 16.32, whose weights are fp32?

# %%
tiny = 2.0 ** -18
small = {"32.32": train(single, single, tiny), "16.16": train(half, half, tiny), "16.32": train(half, single, tiny),
         "16.16, loss scaling": train(half, half, tiny, loss_scaling=1 / tiny)}
shown = ("32.32", "16.16", "16.16, loss scaling")
figures.show(
    figures.curves_figure(range(1, 5), {name: small[name].losses for name in shown}, "epoch",
                          "mean cross-entropy", "Digits, with the loss divided by 262,144", from_zero=True),
    "Loss by epoch. In 32.32 and in 16.16 with loss scaling it falls quickly and together; in 16.16 without "
    "loss scaling it stays where it began.")
for name, trial in small.items():
    print(f"{name}: {'learns' if trial.accuracy > 85 else 'does not learn'}")

# %% [markdown]
# Without loss scaling the gradients underflow. Weights in fp32 do not help: in 16.32, the gradients of activations
# are fp16. Loss scaling brings everything back, and costs nothing.
#
# ## Scale too far
#
# What happens beyond 65,504? On a GPU the result is infinity, and soon NaN. An IPU most likely **clips** it: the
# result is 65,504, and nothing reports it. (This is *derived*, not documented: "NaN on overflow" is a switch, and
# PopTorch leaves it off [5].) The IPU Model clips too. With `IPU_MODEL_HALF_OVERFLOW=infinity` it computes like a GPU.

# %%
import os

rows = []
for exponent in (10, 18, 24):
    row = {"loss scaling": f"2^{exponent}"}
    for device, overflow in (("GPU", "infinity"), ("IPU", "clip")):
        os.environ["IPU_MODEL_HALF_OVERFLOW"] = overflow  # read when a model is compiled
        trial = train(half, half, loss_scaling=2.0 ** exponent)
        row[f"{device}: the loss"] = "a number" if trial.finite else "NaN"
        row[f"{device}: learns"] = "yes" if trial.accuracy > 85 else "no"
    rows.append(row)
del os.environ["IPU_MODEL_HALF_OVERFLOW"]
show.table(rows, index="loss scaling")

# %% [markdown]
# **Which is worse?** Training on the GPU already fails at 2^18, where clipping a few gradients does no harm. But
# nobody overlooks NaN, and `GradScaler` [4] relies on it: it skips the step and lowers the scaling. At 2^24 the
# network on the IPU learns nothing, yet all losses are numbers. So look for overflow yourself.
# `options.Precision.enableFloatingPointExceptions(True)` stops the program at the first overflow, on the device too.
# `IPU_MODEL_REPORT_CLIPPING=1` makes the IPU Model warn, with the line of your program.
#
# ## Round stochastically
#
# Next to 1, fp16 numbers are 1/1024 apart. We update 1,000 weights, all 1, a hundred times by 0.0001. In fp32,
# each arrives at 1.01.
#
# **Predict:** what is their mean in fp16, rounded to the nearest number?

# %%
guess = lesson.predict("mean of the weights after 100 updates, 16.16, rounded to the nearest", ...)

def means(dtype, stochastic):
    options = poptorch.Options().deviceIterations(101).outputMode(poptorch.OutputMode.All).randomSeed(1)
    options.showCompilationProgressBar(False)
    options.Precision.enableStochasticRounding(stochastic)
    model = SteadyUpdates(dtype)
    training_model = poptorch.trainingModel(model, options, poptorch.optim.SGD(model.parameters(), lr=0.0001))
    means, _ = training_model(torch.ones(101, 1))
    training_model.detachFromDevice()
    return means.tolist()

paths = {"fp32": means(single, False), "fp16, nearest": means(half, False), "fp16, stochastic": means(half, True)}
guess.reveal(round(paths["fp16, nearest"][-1], 4), "computed")
show_paths(paths)

# %% [markdown]
# An update below half a step is rounded away, every time: training stands still. **Stochastic rounding** goes
# up with a probability of update / step. One weight is then less exact, but the mean is right. On the IPU it
# costs no time [2]; switch it off for inference. (The course rounds so in the weight update only.)
#
# ## Keep accumulators and moments small
#
# For each parameter AdamW keeps two **moments**, running means of the gradient and of its square; gradient
# accumulation adds an accumulator. PopTorch keeps all three in fp32, also after `model.half()`, unless the
# optimiser is told otherwise. How small may they be? Two of the three choices have been trained above.

# %%
choices = {"all fp32": (single, single, single), "recipe": (half, half, single), "all fp16": (half, half, half)}
names = "accum_type", "first_order_momentum_accum_type", "second_order_momentum_accum_type"
tried = {"all fp32": trials["16.16"], "recipe": trials["16.16, recipe"],
         "all fp16": train(half, half, loss_scaling=1000, **dict(zip(names, choices["all fp16"])))}
show.table([{"accumulator, moments": name,
             "bytes a parameter, weight included": 2 + sum(2 if each is half else 4 for each in types),
             "the digits' loss": "below 1" if tried[name].losses[-1] < 1 else "above 10,000"}
            for name, types in choices.items()], index="accumulator, moments")
program = captured["16.16"]
show_tile_memory({name: program and program.with_state_types(*types).profile() for name, types in choices.items()})

# %% [markdown]
# Second moments are squares, times 0.001: a gradient of 0.005 gives 0.000000025, which fp16 rounds to zero.
# AdamW then divides by nearly zero, and the weights jump to the ends of the range. The accumulator holds scaled
# gradients, so loss scaling protects it.
#
# ResNet-101 with all in fp32 just fits: the room left is less than the model's error.
#
# ## Keep sensitive parts in fp32
#
# | part | why | how |
# |---|---|---|
# | softmax and loss | exponentials overflow, logarithms lose digits | `loss(logits.float(), labels)` |
# | statistics of norms | squares overflow above 256; long sums | `.float()` before, `.half()` after |
# | second moments | squares underflow | `second_order_momentum_accum_type` |
# | a layer that misbehaves | its weights or inputs are out of range | `layer.float()`, with `layer(x.float()).half()` |
#
# **Exercise 2** (5 min). A bug hunt: for inputs around 1,000 in fp16, this norm returns numbers that are a few
# times too large, and there is no error.
# `x / (x.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()`. Write it so that it takes and returns fp16, and nothing
# overflows in between.

# %% tags=["exercise"]
def normalised(x):
    ### BEGIN SOLUTION
    ### STARTER: return ...
    wide = x.float()
    return (wide / (wide.pow(2).mean(-1, keepdim=True) + 1e-5).sqrt()).half()
    ### END SOLUTION

check_norm(normalised)

# %% [markdown] tags=["hint"]
# 1,000 squared is a million. Which operation is the first that cannot hold its result? Convert before it.

# %% [markdown] tags=["solution"]
# The square is clipped to 65,504, so the root is never above 256. (On a GPU the square is infinite, and *x* divided
# by that is zero, which at least you would notice.) In fp32 there is room up to 10^38. The fp32 copy takes memory for
# a moment only; the next layer gets fp16 again.

# %% [markdown]
# ## Explore, and climb the first rung
#
# Which setting comes nearest to the limit, and which is fastest? Then the hands-on's ladder starts: seconds an
# epoch, with the host's work.

# %%
explore_precision(captured)
lesson.show_ladder("half precision")

# %% [markdown]
# The IPUs alone would need about a tenth of that time: the host limits. Lessons 02 to 05 go on from here.
#
# ## Summary
#
# * 16.32 shrinks activations, 16.16 weights and optimiser state too: out of memory is cured.
# * The matrix units run 2 or 4 times faster, the whole program less.
# * Small gradients underflow: scale the loss. Small updates get lost: round stochastically.
# * Overflow is silent on an IPU: look for it.
# * Losses, norm statistics and second moments stay in fp32.
#
# Half precision is a range to fit into, not a switch.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# Nothing changes in the code. Memory and rates become measured, with `options.enableProfiling()` and PopVision.
# `options.Training.setAutomaticLossScaling(True)`, a preview, finds the scaling by itself.
#
# ## What transfers
#
# GPUs do the same: `torch.autocast` chooses types per operation, `GradScaler` scales the loss [4]. bfloat16 has
# fp32's range and fewer digits: no loss scaling, but more lost updates. The IPU has no bfloat16.
#
# ## References
#
# 1. *Memory and Performance Optimisation on the IPU*, hands-on of a workshop on IPUs, day 03 (2022): two Mk2 IPUs.
# 2. Graphcore, *AI-Float: mixed precision arithmetic for AI*, white paper; PopLibs sources, `ConvVertexType.cpp`.
# 3. Graphcore, *IPU-POD64 reference design: datasheet*.
# 4. Micikevicius et al., *[Mixed Precision Training](https://arxiv.org/abs/1710.03740)*, 2017.
# 5. Graphcore, *TensorFlow user guide*, half precision; PopART sources, `irlowering.cpp`.
#
# **Next:** [lesson 02](02_gradient_accumulation.ipynb), gradient accumulation.
