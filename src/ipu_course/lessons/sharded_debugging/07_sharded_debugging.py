# %% [markdown]
# # Sharded debugging
#
# A colleague trains ResNet-101 on four IPUs. It compiles, and every loss is right. But each weight update takes
# 91.7 ms where 57.9 ms would be enough (modelled): **1.58 times as long**. A second network gets 98 % of its images
# right and does damage all the same. Neither prints an error. How do you find such faults?
#
# *Plan 55 minutes, 22 of them for the exercises; the notebook itself runs in under one. Before it: lesson 06.* You will
#
# * run one IPU at a time,
# * count the cost of sharding,
# * compare pipelined and sharded results,
# * reduce a run to one sample, and print its tensors,
# * find the first stage that differs,
# * repair an overflow,
# * find a placement bug with the profile,
# * work through a checklist.

# %%
import contextlib
import copy
import inspect
import io

import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import mnist
from ipu_course.lessons.sharded_debugging import (
    BLOCKS, DigitNetwork, UnitScale, first_wrong, lesson, plain_outputs, resnet_on_four_ipus, show_cure,
    show_differences, show_ipus, show_sharding, somebodys_placement, update_times)
from ipu_course.schedule import pipelined, sharded

# %% [markdown]
# ## Run one IPU at a time
#
# A pipeline works on many micro-batches at once, which makes every fault hard to find. So switch it off first.
# `poptorch.ShardedExecution` takes the same blocks and stages ([lesson 06](06)), but only one micro-batch is under way:
# it goes from the first IPU to the last and back, while all others wait. So there is no stash, and **no minimum** for
# gradient accumulation or device iterations.
#
# **Predict:** how many times as long does sharded execution take as a pipeline, with four equally long stages
# and 10 micro-batches?

# %% tags=["prediction"]
equal = lesson.predict("times as long sharded, four equal stages, 10 micro-batches", ...)

# %%
busy = {schedule.__name__: schedule(4, 10).busy_share(backward=2) for schedule in (pipelined, sharded)}
equal.reveal(busy["pipelined"] / busy["sharded"], "computed")
print("busy:", {name: f"{share:.1%} of the time" for name, share in busy.items()})
show.drawing(
    figures.schedule(sharded(stages=4, micro_batches=4), title="Sharded: 4 micro-batches through 4 stages"),
    "Sharded execution runs one pass at a time, so three of the four IPUs always wait.")

# %% [markdown]
# With equal stages, a pipeline works for *m / (m + N - 1)* = 10 / 13 of the time and sharded execution for 1 / 4,
# however long a backward pass takes.
#
# ## Count the cost of sharding
#
# **Predict:** how many times as long does the workshop's ResNet-101 [2] take, on two IPUs with 64 micro-batches?

# %% tags=["prediction"]
resnet = lesson.predict("times as long sharded, ResNet-101 on two IPUs, 64 micro-batches", ...)

# %%
network = torchvision.models.resnet101().half()
poptorch.BeginBlock(network.layer3[8], ipu_id=1)
adamw = poptorch.optim.AdamW(network.parameters(), accum_type=torch.half, first_order_momentum_accum_type=torch.half)
options = poptorch.Options()
options.Training.gradientAccumulation(8)
program = engine.modelled_module(models.ClassifierWithLoss(network), ladder.micro_batch(torch.half), options, adamw)
times = update_times(program, (1, 3, 8, 24, 64))
resnet.reveal(times[-1].ratio, "modelled, if sharded execution keeps its activations")
show_sharding(times, lesson.published("further_micro_batch"))

# %% [markdown]
# It is not twice as long: the pipeline computes activations again to keep its stash small, and its slower stage sets
# the pace. We assume that sharded execution, with one micro-batch under way, keeps its activations. Nobody has
# published a sharded time, and with recomputation it would be slower (last line). The memory is nearly the same, so
# **sharding does not help a model that does not fit**. But ten calls of debugging hardly notice its cost.
#
# ## Compare pipelined and sharded results
#
# Our network reads digits from two scanners: one gives pixels from 0 to 255, the other has 12 bits and gives 0 to
# 4,095. `UnitScale`, behind the first convolution, makes all images equally bright for the later layers. The blocks B1
# to B4 begin at `layer1`, `scale`, `layer3` and `layer4`.
#
# A fair comparison changes the strategy and nothing else: same first weights, same data, same accumulation.
# **If the two agree, the fault is in the model or its data**, and you can look for it in the simpler program.
# If they differ, look at the placement, and at what depends on the order of work, such as random numbers.

# %%
torch.set_num_threads(1)  # for so small a model, more threads would only wait for each other

def new_network():
    torch.manual_seed(1)  # the same first weights every time
    return DigitNetwork(scale=UnitScale())

def options_for(strategy, accumulation=1):
    options = poptorch.Options().setExecutionStrategy(strategy).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    return options.showCompilationProgressBar(False)

# %%
digits, test_digits = mnist(train=True), mnist(train=False)
pixels, labels = digits.pixels[:6400].float().unsqueeze(1), digits.labels[:6400]

def train(strategy, updates=4, accumulation=8):
    network = new_network()
    optimizer = poptorch.optim.AdamW(network.parameters(), lr=0.003)
    model = poptorch.trainingModel(network, options_for(strategy, accumulation), optimizer)
    parts = zip(pixels.split(20 * accumulation)[:updates], labels.split(20 * accumulation))
    losses = torch.cat([model(*part)[1] for part in parts])
    model.detachFromDevice()
    return losses, network

losses, one = train(poptorch.PipelinedExecution(*BLOCKS))
sharded_losses, other = train(poptorch.ShardedExecution(*BLOCKS))
print(f"the same {len(losses)} losses?", torch.allclose(losses, sharded_losses, rtol=1e-4))
print("the same weights?", all(torch.allclose(*pair, atol=1e-5) for pair in zip(one.parameters(), other.parameters())))

# %% [markdown]
# ## Reduce a run to one sample, and print its tensors
#
# The best bug report is the smallest program that still fails: one sample, accumulation 1, device iterations 1,
# sharded. Every tensor then belongs to that sample. (Test a network with batch norm in `eval()`.)
#
# `print(x)` in `forward` is of no use: `forward` runs once, when the graph is made.
# `poptorch.ipu_print_tensor` is an operation of the graph: the IPU prints the value, and in training its gradient,
# whenever they are computed. Use what it returns, or it is not part of the graph. A **forward hook** puts it behind a
# layer without changing the model's code. It prints to stderr, which we catch here.
#
# **Anchoring** returns an internal tensor to the host, where your program can compare it. `getTensorNames()` lists all
# names; those of gradients begin with `Gradient___`. Each anchored tensor costs memory and transfer.

# %%
single = options_for(poptorch.ShardedExecution(*BLOCKS))  # accumulation 1; device iterations are 1 anyway
image, label = pixels[:1], labels[:1]
network, anchored = new_network(), single.clone()
network.layer4.register_forward_hook(
    lambda layer, inputs, output: poptorch.ipu_print_tensor(output, "logits", digits=2))
anchored.anchorTensor("slope", "Gradient___layer1.conv.weight")  # my name for it, PopTorch's name
model = poptorch.trainingModel(network, anchored, poptorch.optim.SGD(network.parameters(), lr=0.01))
with contextlib.redirect_stderr(io.StringIO()) as printed:
    model(image, label)
print(f"label: {label.item()}\n{printed.getvalue()}")
reference = new_network()
reference(image, label)[1].backward()
slope, wanted = model.getAnchoredTensor("slope"), reference.layer1.conv.weight.grad
print("the gradient as in plain PyTorch?", torch.allclose(slope, wanted, atol=1e-4 * wanted.abs().max()))
print("some of", len(model.getTensorNames()), "names:", *model.getTensorNames()[11:14])

# %% [markdown]
# The gradient is negative only at the label: training raises that logit and lowers the others.
#
# ## Find the first stage that differs
#
# Now the hunt. We train the network in fp32 on images of the first scanner, then run it in half precision on images of
# the second one. An image of which the network is less than 90 % sure is sent to manual review. In fp32 this is one
# image in eight, for either scanner.
#
# **Predict:** in fp16, what percentage of the second scanner's images is sent to review, to the nearest ten? And if
# something goes wrong, in which of the four blocks does it begin?

# %% tags=["prediction"]
review = lesson.predict("review rate in per cent, second scanner, fp16", ...)
block = lesson.predict("number of the first block that is wrong (0 for none)", ...)

# %%
_, network = train(poptorch.ShardedExecution(*BLOCKS), updates=80, accumulation=4)
tests, right = test_digits.pixels.float().unsqueeze(1), test_digits.labels
bright = tests * (4095 / 255)  # the same digits from the second scanner

def percentages(dtype):  # second scanner: accuracy and review rate
    model = poptorch.inferenceModel(copy.deepcopy(network).eval().to(dtype), single)
    sure, digit = model(bright.to(dtype)).float().softmax(1).max(1)
    return [100 * share.float().mean().item() for share in (digit == right, sure < 0.9)]

found = {dtype: percentages(dtype) for dtype in (torch.float32, torch.half)}
review.reveal(10 * round(found[torch.half][1] / 10), "computed on the IPU")
print("accuracy of at least 95 %, fp32 and fp16:", [each[0] >= 95 for each in found.values()])

# %% [markdown]
# There is no NaN, no error, and the accuracy is as good as in fp32. But hardly any image is reviewed now: the network
# is sure even when it is wrong. Which stage is at fault?
#
# **Exercise 1** (8 min). Write `first_difference(reference, device)`. Both are dictionaries of stage names to
# tensors, in order; the device's are fp16. Return the **name of the first stage** whose largest difference is
# more than 2 % of the reference's largest value, or `None`. Mind NaN. The cell after it compares one image of each
# scanner, with the end of each stage anchored; the reference is plain PyTorch, where forward hooks note the same
# places. `first_wrong` calls your function, or ours until yours is right.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def first_difference(reference, device):
### STARTER:     ...
def first_difference(reference, device):
    for name, wanted in reference.items():
        difference = (device[name].float() - wanted).abs().max() / wanted.abs().max()
        if not difference <= 0.02:  # a comparison with NaN is never true
            return name
    return None
### END SOLUTION

lesson.check(1, first_difference)

# %% [markdown] tags=["hint"]
# Loop over `reference.items()`. Sizes of differences: `.abs().max()`. What is `nan > 0.02`?

# %% [markdown] tags=["solution"]
# `not difference <= 0.02` is true for NaN as well; `difference > 0.02 or difference.isnan()` says the same. The first
# stage that differs counts, because later stages only inherit its fault.

# %%
ends = {"B1": "layer1/relu/Relu:0", "B2": "layer2/relu/Relu:0", "B3": "layer3/Gemm:0", "B4": "layer4/Gemm:0"}
modules = {"B1": "layer1", "B2": "layer2", "B3": "layer3", "B4": "layer4"}
watched = single.clone()
for stage, name in ends.items():
    watched.anchorTensor(stage, name)
model = poptorch.inferenceModel(copy.deepcopy(network).eval().half(), watched)
compared = {}
for scanner, image in (("first scanner", tests[:1]), ("second scanner", bright[:1])):
    model(image.half())
    outputs = {stage: model.getAnchoredTensor(stage) for stage in ends}
    compared[scanner] = (plain_outputs(network, modules, image), outputs)
block.reveal(first_wrong(first_difference, *compared["second scanner"]), "found by comparing")
show_differences(compared, lesson.takeaway("first_block"))

# %% [markdown]
# In a network of a hundred layers, anchor the middle one: if it is right, go on in the second half, else in the first.
# With this **bisection**, seven runs find one layer in a hundred.
#
# ## Repair an overflow
#
# B1 only rounds; B2 is wrong. It begins with `scale`, so look at its code. Floating-point exceptions stop a program at
# the first overflow, and the IPU Model says where.
# The explorer then runs all test images, as brighter and brighter scanners give them: in fp32, in fp16 on the IPU, and
# in fp16 as on a GPU.

# %%
print(inspect.getsource(UnitScale))
strict = single.clone()
strict.Precision.enableFloatingPointExceptions(True)
try:
    poptorch.inferenceModel(copy.deepcopy(network).eval().half(), strict)(bright[:1].half())
except poptorch.Error as error:
    print("stopped:", str(error).split("exception: ")[-1])
lesson.explore(network, tests, right)

# %% [markdown]
# You know this overflow from [lesson 01](01), but here you had to find it. fp16 ends at 65,504.
# `x * x` is larger, and the IPU clips it (*derived*). So the power is too small and the image too bright. ReLU layers
# answer a brighter image with larger outputs: the same logit wins, but by far too much. On a GPU the power is infinite,
# one over its root is 0, and so is the whole image. **Which is worse?** Somebody reports the GPU's fault on the first
# day. The IPU's may last for years.
#
# **Exercise 2** (6 min). Move the slider: what is the smallest number of `bits` with which the IPU's review rate is
# less than half of fp32's? Then write `SafeUnitScale`. It takes and returns images of the same type as `UnitScale`,
# but nothing inside overflows.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: bits = ...
### STARTER: class SafeUnitScale(torch.nn.Module):
### STARTER:     ...
bits = 11
class SafeUnitScale(torch.nn.Module):
    def forward(self, x):
        wide = x.float()
        power = (wide * wide).mean(dim=(1, 2, 3), keepdim=True)
        return (wide * torch.rsqrt(power + 0.001)).to(x.dtype)
### END SOLUTION

show_cure(network, SafeUnitScale, tests, right)
lesson.check(2, bits, SafeUnitScale)

# %% [markdown] tags=["hint"]
# `x.float()` computes in float32 from there on. The next layer's weights are float16 again: `.to(x.dtype)`.

# %% [markdown] tags=["solution"]
# With 10 bits only the brightest squares are clipped. The cure needs float32 for the multiplication, not only for the
# mean. Dividing by the largest pixel first works as well, if you guard against a blank image: 0 / 0 is NaN.

# %% [markdown]
# ## Find a placement bug with the profile
#
# Two placements are wrong. The first puts our network's blocks on three IPUs in the order B1, B3, B2, B4. The second
# is your colleague's ResNet-101, with its modelled profile: its blocks begin at `layer2[0]`, `layer3[4]` and
# `layer3[14]`, and what comes before is on IPU 0.

# %%
stages = (poptorch.Stage("B1").ipu(0), poptorch.Stage("B3").ipu(1),
          poptorch.Stage("B2").ipu(2), poptorch.Stage("B4").ipu(2))
for execution in (poptorch.ShardedExecution, poptorch.PipelinedExecution):
    try:
        these, _ = train(execution(*stages), updates=1)
        print(execution.__name__, "gives the right losses:", torch.allclose(these, losses[:8], rtol=1e-4))
    except poptorch.Error as error:
        print(execution.__name__, "is refused:", str(error).split(". Use")[0].replace("'poptorch_py_error': ", ""))

faulty = resnet_on_four_ipus(somebodys_placement)
show_ipus({"as found": faulty.profile()})

# %% [markdown]
# The first fault is easy: sharded, the losses are right, so the model is fine, and the pipeline's error names the
# order. The second fault causes no error at all.
#
# **Exercise 3** (8 min). Which IPU is `idle`, and which one is `crowded` with the work of two stages? Each is a number
# from 0 to 3. Then write `place(resnet)`, so that all four IPUs work and an update takes 57.9 ms or less. You may move
# the blocks: a shorter update is a better score.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: idle = ...
### STARTER: crowded = ...
### STARTER: def place(resnet):
### STARTER:     ...
idle = 2
crowded = 1
def place(resnet):
    poptorch.BeginBlock(resnet.layer2[0], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[4], ipu_id=2)
    poptorch.BeginBlock(resnet.layer3[14], ipu_id=3)
### END SOLUTION

lesson.check(3, idle, crowded, place, using=faulty)

# %% [markdown] tags=["hint"]
# An IPU without work has neither milliseconds nor KiB. Which `ipu_id` did the block have that should run there?

# %% [markdown] tags=["solution"]
# IPU 2 has 0 ms and 0 KiB, and IPU 1 takes about twice as long as IPU 3: two blocks had `ipu_id=1`. IPU 0 has little
# to do. If it takes over some blocks of `layer2`, and the others move along, an update gets shorter still.

# %%
print("".join(inspect.getsourcelines(somebodys_placement)[0][2:]))
intended = faulty.profile(split=("model.layer2.0", "model.layer3.4", "model.layer3.14"))
show_ipus({"as found": faulty.profile(), "as intended": intended})
ratio = faulty.profile().device_seconds_per_call / intended.device_seconds_per_call
print(f"modelled: an update takes {ratio:.2f} times as long as intended")

# %% [markdown]
# One digit was wrong, and only the profile showed it.
#
# ## Work through a checklist
#
# | symptom | try | tool |
# |---|---|---|
# | refused while compiling | read the rule it names; sharded for a moment | `ShardedExecution` |
# | wrong results, pipelined only | same seed, same accumulation, then compare | sharded against pipelined |
# | wrong for some inputs | one such sample, stage by stage | `anchorTensor` |
# | NaN, or wrong only in fp16 | stop at the first overflow | `options.Precision.enableFloatingPointExceptions(True)` |
# | does not learn | gradients of first and last layer | `ipu_print_tensor`, `Gradient___...` |
# | right, but slow | work and wait of each IPU | profile |
# | out of memory | the fullest tile, by category | profile; not sharding |
#
# ## Summary
#
# * Sharded execution computes the same as a pipeline, one IPU at a time, with any accumulation.
# * Make the failing run small: one sample, sharded. Then compare with plain PyTorch, stage by stage.
# * The first stage that differs has the fault. Bisect, and mind NaN.
# * Overflow in fp16 is obvious on a GPU and silent on an IPU.
# * A wrong placement causes an error if you are lucky. Otherwise only the profile shows it.
#
# **Takeaway:** make the run small, make it sequential, and find the first difference.
#
# Your predictions, exercises and scores: `python -m ipu_course report`.
#
# ## On real hardware
#
# The PopTorch cells run unchanged with the Poplar SDK, and the modelled ones say that they need the IPU Model. Printed
# tensors then come past Python's `sys.stderr`: look in the terminal. Names of tensors may differ. Each anchored
# program compiles anew, which takes minutes, so bisection saves more there.
#
# ## What transfers
#
# You can hunt like this on every accelerator: with eager mode or `jax.disable_jit()` instead of sharding,
# `torch.compile`'s minifier for bisection, and one rank instead of many. fp16 ends at 65,504 everywhere, but devices
# differ in what happens beyond it.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022), section on
#    sharded execution.
# 2. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs; execution traces with
#    accumulation 3 and 8. Their difference is five micro-batches, counted without the waiting in ExternalSync.
#
# **Next:** When a model still does not fit, you can move the optimiser's state off the chip.
