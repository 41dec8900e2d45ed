# %% [markdown]
# # Sharded debugging
#
# *Plan 50 minutes, 12 of them for the exercises; the notebook itself runs in under one. Before it: lesson 06.*
#
# Something is wrong: the loss does not fall, some predictions are nonsense, or the results are right but take far too
# long. A pipeline works on many micro-batches at once, which makes every fault hard to find. So switch it off
# first. You will
#
# * run one IPU at a time,
# * compare pipelined and sharded results,
# * count the cost of sharding,
# * reduce a run to a single sample,
# * print and anchor tensors,
# * find a numerical bug by bisection,
# * find a placement bug with the profile,
# * work through a checklist.

# %%
import torch
import torchvision
from torch import nn

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import mnist
from ipu_course.lessons.sharded_debugging.checks import check_first_difference, check_silent_fault
from ipu_course.lessons.sharded_debugging.stage_differences import first_wrong, plain_outputs, show_differences
from ipu_course.lesson import Lesson
from ipu_course.programs.mnist.model import ConvLayer
from ipu_course.schedule import pipelined, sharded
from ipu_course.lessons.sharded_debugging.placement import show_ipus, somebodys_placement
from ipu_course.lessons.sharded_debugging.sharding import further_micro_batch, show_sharding, update_times

lesson = Lesson("07")

# %% [markdown]
# ## Run one IPU at a time
#
# `poptorch.ShardedExecution` takes the same blocks and stages as a pipeline (lesson 06). But it runs only one
# micro-batch at a time, from the first IPU to the last and back. Then the next one starts. All other IPUs wait
# meanwhile. So it needs no stash, and there is **no minimum** for gradient accumulation or device iterations.
#
# **Predict:** take four equally long stages and 10 micro-batches. How many times as long as a pipeline does sharded
# execution take?

# %%
guess = lesson.predict("times as long, four stages, 10 micro-batches", ...)
show.drawing(
    figures.schedule(sharded(stages=4, micro_batches=4), title="Sharded: 4 micro-batches through 4 stages"),
    "Sharded execution runs one pass at a time, so three of the four IPUs always wait.")
guess.reveal(pipelined(4, 10).busy_share(1) / sharded(4, 10).busy_share(1), "computed as (10 / 13) / (1 / 4)")

# %% [markdown]
# The pipeline works for *m / (m + N - 1)* = 10 / 13 of the time, sharded execution for a quarter.
#
# ## Compare pipelined and sharded results
#
# Our network reads digits from two scanners: one gives pixels from 0 to 255, the other from 0 to 4,095.
# `UnitScale` divides each image by the root of its power, so that later layers see no difference in brightness.
#
# A fair comparison changes the strategy and nothing else: same first weights, same data, same accumulation.
# **If the two agree, the fault is in the model or its data**, and you can look for it in the simpler program.
# If they differ, look at the placement, and at everything that depends on the order of work, such as random numbers.

# %%
class UnitScale(nn.Module):
    def forward(self, x):  # the mean of an image's squares becomes 1
        power = (x * x).mean(dim=(1, 2, 3), keepdim=True)
        return x * torch.rsqrt(power + 0.001)

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.scale, self.layer2 = ConvLayer(1, 10, 5, 2), UnitScale(), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4, self.loss = nn.Linear(320, 64), nn.Linear(64, 10), nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        x = self.layer2(self.scale(self.layer1(images)))
        x = self.layer4(torch.relu(self.layer3(x.flatten(1))))
        return x if labels is None else (x, self.loss(x, labels))

# %%
blocks = {"B1": "layer1", "B2": "scale", "B3": "layer3", "B4": "layer4"}  # where each block begins

def new_network():
    torch.manual_seed(1)  # the same first weights every time
    network = Network()
    for block, layer in blocks.items():
        poptorch.BeginBlock(getattr(network, layer), block)
    return network

def options_for(strategy, accumulation=1):
    options = poptorch.Options().setExecutionStrategy(strategy).outputMode(poptorch.OutputMode.All)
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)  # keeps this page tidy
    return options

# %%
torch.set_num_threads(1)  # for so small a model, more would only wait for each other
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

losses, one = train(poptorch.PipelinedExecution(*blocks))
sharded_losses, other = train(poptorch.ShardedExecution(*blocks))
print(f"the same {len(losses)} losses?", torch.allclose(losses, sharded_losses, rtol=1e-4))
print("the same weights?", all(torch.allclose(*pair, atol=1e-5) for pair in zip(one.parameters(), other.parameters())))

# %% [markdown]
# ## Count the cost of sharding
#
# Take ResNet-101 on two IPUs, as in the workshop [2] of lessons 01 to 05. Does sharding take twice as long there?
#
# **Predict:** how many times as long does a weight update of 64 micro-batches take when sharded?

# %%
guess = lesson.predict("times as long, ResNet-101, two IPUs, 64 micro-batches", ...)
resnet = torchvision.models.resnet101().half()
poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
adamw = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, first_order_momentum_accum_type=torch.half)
model = engine.modelled_module(models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half),
                               options_for(poptorch.PipelinedExecution(), accumulation=8), adamw)
times = update_times(model, (1, 3, 8, 24, 64))
show_sharding(times)
guess.reveal(times[-1].ratio if times else None, "modelled", "only in words, \"low efficiency\" [1]")

if times:
    pipelined_ms, sharded_ms = (1e3 * seconds for seconds in further_micro_batch(times))
    print(f"modelled: {pipelined_ms:.2f} ms for a further micro-batch, pipelined; {sharded_ms:.2f} ms sharded")
print(f"derived: {6_454_419 / 1.33e6:.2f} ms pipelined; 6,454,419 cycles of IPU 0 at 1.33 GHz, from two traces [2]")

# %% [markdown]
# No, it takes less than twice as long. The pipeline computes activations again, to keep its stash small. Sharded
# execution has only one micro-batch under way and keeps its activations. With few micro-batches, the pipeline also
# spends much of its time in ramp-up and ramp-down. The memory is nearly the same: **sharding does not help a model
# that does not fit**. Its cost matters in a long training, but hardly in ten calls of debugging.
#
# ## Reduce a run to a single sample
#
# The best bug report is the smallest program that still fails: one sample, accumulation 1, device iterations 1,
# sharded. Every tensor then belongs to that sample, and is printed once. A pipeline could not run it, because it
# needs *2N - 1* micro-batches.
#
# This does not work with a layer whose output depends on the **rest of the batch**. Batch norm in training takes mean
# and variance over the batch, so an image alone gives other numbers. Test such a network with `eval()`, or use group
# norm.

# %%
single = options_for(poptorch.ShardedExecution(*blocks))  # accumulation 1; device iterations are 1 anyway
image, label = pixels[:1], labels[:1]
model = poptorch.inferenceModel(new_network(), single)
print("one sample as in plain PyTorch?", torch.allclose(model(image), new_network()(image), atol=1e-3))

maps = torch.randn(8, 10, 6, 6, generator=torch.Generator().manual_seed(1))
layers = {"batch norm, training": nn.BatchNorm2d(10), "batch norm, eval()": nn.BatchNorm2d(10).eval(),
          "group norm": nn.GroupNorm(2, 10), "UnitScale": UnitScale()}
show.table([{"layer": name, "an image alone gives the same as in its batch":
             "yes" if torch.allclose(layer(maps)[:1], layer(maps[:1]), atol=1e-4) else "no"}
            for name, layer in layers.items()], index="layer")

# %% [markdown]
# ## Print and anchor tensors
#
# `print(x)` in `forward` prints nothing useful: it runs once, when the graph is made. `poptorch.ipu_print_tensor`
# is an operation of the graph: the IPU prints the value, and in training its gradient, whenever they are
# computed. Use what it returns, or it is not part of the graph. A **forward hook** puts it behind a layer
# without changing the model's code. It prints to stderr; here we catch that.
#
# **Anchoring** lets your program compare values: the call returns an internal tensor to the host, as it returns
# results. After compilation `getTensorNames()` lists all names; those of gradients begin with `Gradient___`. Each
# anchored tensor costs memory and transfer, so anchor only a few.

# %%
import contextlib
import io

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
# ## Find a numerical bug by bisection
#
# Now the hunt. We train the network in fp32 on images of the first scanner, then run it in half precision. Half of
# the test images are from the second scanner. When the network is less than 90 % sure, a person looks at the image.
# In fp32 this happens to one image in eight, for either scanner.
#
# **Predict:** in fp16, what percentage of the second scanner's images does a person look at, to the nearest ten?

# %%
import copy
import os

guess = lesson.predict("percentage that a person looks at, second scanner, fp16", ...)
_, network = train(poptorch.ShardedExecution(*blocks), updates=80, accumulation=4)
tests = test_digits.pixels.float().unsqueeze(1)
tests[1::2] *= 4095 / 255  # every second image comes from the second scanner

def per_scanner(what, dtype):  # a percentage for each scanner
    model = poptorch.inferenceModel(copy.deepcopy(network).eval().to(dtype), single)
    return 100 * what(model(tests.to(dtype)).float()).float().view(-1, 2).mean(0)

def right(logits):
    return logits.argmax(1) == test_digits.labels

def unsure(logits):
    return logits.softmax(1).amax(1) < 0.9

print("at least 95 % right, fp32 and fp16:", [all(per_scanner(right, to) >= 95) for to in (torch.float32, torch.half)])
guess.reveal(10 * round(per_scanner(unsure, torch.half)[1].item() / 10), "computed on the IPU")

# %% [markdown]
# Hardly any image goes to a person now, so something is wrong. The network is sure even when its prediction is wrong,
# and there is no NaN and no error. Which stage is at fault?
#
# **Exercise 1** (7 min). Write `first_difference(reference, device)`. Both are dictionaries of stage names to
# tensors, in order; the device's are fp16. Return the **name of the first stage** whose largest difference is
# more than 2 % of the reference's largest value, or `None`. Mind NaN.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: first_difference = ...
def first_difference(reference, device):
    for name, wanted in reference.items():
        difference = (device[name].float() - wanted).abs().max() / wanted.abs().max()
        if not difference <= 0.02:  # a comparison with NaN is never true
            return name
    return None
### END SOLUTION
check_first_difference(first_difference)

# %% [markdown] tags=["hint"]
# Loop over `reference.items()`. Sizes of differences: `.abs().max()`. What is `nan > 0.02`?

# %% [markdown] tags=["solution"]
# `not difference <= 0.02` is true for NaN as well. The first stage that differs counts, because later stages only
# inherit its fault.

# %% [markdown]
# Now one image of each scanner, with the end of each stage anchored. The reference is plain PyTorch, where
# forward hooks note the same places.
#
# **Predict:** in which block, 1 to 4, does the second scanner's image go wrong?

# %%
guess = lesson.predict("number of the first block that is wrong", ...)
ends = {"B1": "layer1/relu/Relu:0", "B2": "layer2/relu/Relu:0", "B3": "layer3/Gemm:0", "B4": "layer4/Gemm:0"}
modules = {"B1": "layer1", "B2": "layer2", "B3": "layer3", "B4": "layer4"}
watched = single.clone()
for block, name in ends.items():
    watched.anchorTensor(block, name)
model = poptorch.inferenceModel(copy.deepcopy(network).eval().half(), watched)
compared = {}
for scanner, image in (("first scanner", tests[:1]), ("second scanner", tests[1:2])):
    model(image.half())
    found = {block: model.getAnchoredTensor(block) for block in ends}
    compared[scanner] = (plain_outputs(network, modules, image), found)
show_differences(compared)
guess.reveal(first_wrong(*compared["second scanner"]), "found by comparing (0 would be none)")

# %% [markdown]
# B1 is right, B2 is wrong. With four stages we anchored all of them. In a network of a hundred layers, anchor the
# middle one: if it is right, go on in the second half, else in the first. That is **bisection**: seven runs find
# one layer in a hundred.
#
# Next come the operations inside `scale`, where B2 begins, in fp32 and in fp16. fp16 ends at 65,504. And what would
# a GPU compute? The IPU Model can imitate one.

# %%
inside = [name for name in model.getTensorNames() if name.startswith("scale/")]
watched = single.clone()
for name in inside:
    watched.anchorTensor(name, name)
largest = {}
for dtype in (torch.float32, torch.half):
    model = poptorch.inferenceModel(copy.deepcopy(network).eval().to(dtype), watched)
    model(tests[1:2].to(dtype))
    largest[dtype] = [model.getAnchoredTensor(name).abs().max().item() for name in inside]
show.table([{"operation": name, "fp32, largest value": "above 65,504" if wide > 65504 else "in fp16's range",
             "fp16, largest value": "65,504" if narrow == 65504 else "less"}
            for name, wide, narrow in zip(inside, *largest.values())], index="operation")

os.environ["IPU_MODEL_HALF_OVERFLOW"] = "infinity"  # as on a GPU; read when a model is compiled
print("GPU, percentage right and unsure:", [round(per_scanner(w, torch.half)[1].item()) for w in (right, unsure)])
del os.environ["IPU_MODEL_HALF_OVERFLOW"]

# %% [markdown]
# The first multiplication, `x * x`, overflows, and the IPU clips it to 65,504 (*derived*, see lesson 01). So the
# power is too small and the image too bright. For a brighter image, ReLU layers give similar but larger outputs: the
# same logit wins, but by far too much.
#
# On the GPU the power is infinite, one over its root is 0, and so is the whole image: 10 % are right, and all images
# go to a person. **Which is worse?** Somebody reports the GPU's fault on the first day. The IPU's may last for years:
# the accuracy is fine, and nobody sees the mistakes.
#
# So make overflow visible. Floating-point exceptions stop the program at the first overflow, on the device too.
# `IPU_MODEL_REPORT_CLIPPING=1` makes the IPU Model warn instead.
#
# The cure: compute the power in fp32.

# %%
strict = single.clone()
strict.Precision.enableFloatingPointExceptions(True)
try:
    poptorch.inferenceModel(copy.deepcopy(network).eval().half(), strict)(tests[1:2].half())
except poptorch.Error as error:
    print("stopped:", str(error).split("exception: ")[-1])

class SafeUnitScale(nn.Module):
    def forward(self, x):
        wide = x.float()
        power = (wide * wide).mean(dim=(1, 2, 3), keepdim=True)
        return (wide * torch.rsqrt(power + 0.001)).to(x.dtype)

network.scale = poptorch.BeginBlock(SafeUnitScale(), "B2")
print("fp16, at least 8 % go to a person, first and second scanner:", (per_scanner(unsure, torch.half) >= 8).tolist())

# %% [markdown]
# ## Find a placement bug with the profile
#
# Somebody placed our network like this. Is the model at fault, or the placement?

# %%
found = (poptorch.Stage("B1").ipu(0), poptorch.Stage("B3").ipu(1),
         poptorch.Stage("B2").ipu(2), poptorch.Stage("B4").ipu(2))
for execution in (poptorch.ShardedExecution, poptorch.PipelinedExecution):
    try:
        these, _ = train(execution(*found), updates=1)
        print(execution.__name__, "gives the right losses:", torch.allclose(these, losses[:8], rtol=1e-4))
    except poptorch.Error as error:
        print(execution.__name__, "is refused:", str(error).split(". Use")[0].replace("'poptorch_py_error': ", ""))

# %% [markdown]
# With sharded execution the losses are right, so the model is fine. The error of the pipeline names the fault: B2
# comes before B3. The next fault causes no error. Somebody placed ResNet-101 on four IPUs with three blocks. It
# compiles and its losses are right, but it is slow. You have only its profile.

# %%
def resnet_on_four_ipus(place):
    resnet = torchvision.models.resnet101().half()
    place(resnet)
    adamw = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, first_order_momentum_accum_type=torch.half)
    return engine.modelled_module(models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half),
                                  options_for(poptorch.PipelinedExecution(), accumulation=16), adamw)

model = resnet_on_four_ipus(somebodys_placement)
slow = model.profile()
show_ipus({"as found": slow})

# %% [markdown]
# **Exercise 2** (5 min). Which IPU has no work at all, and which one does the work of two stages? Each is a number
# from 0 to 3.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: idle = ...
### STARTER: crowded = ...
idle = 2
crowded = 1
### END SOLUTION
check_silent_fault(idle, crowded)

# %% [markdown] tags=["hint"]
# An IPU without work has neither milliseconds nor KiB. The other one takes about twice as long as the IPU after the
# idle one.

# %% [markdown] tags=["solution"]
# IPU 2 has 0 ms and 0 KiB, and IPU 1 takes about twice as long as IPU 3.

# %% [markdown]
# **Predict:** how many times as long does an update take as with a stage on each IPU?

# %%
import inspect

guess = lesson.predict("times as long as with the right placement", ...)
print("".join(inspect.getsourcelines(somebodys_placement)[0][2:]))
repaired = model.profile(split=("model.layer2.0", "model.layer3.4", "model.layer3.14"))
show_ipus({"as found": slow, "a stage on each IPU": repaired})
guess.reveal(slow.device_seconds_per_call / repaired.device_seconds_per_call, "modelled")

# %% [markdown]
# The second `ipu_id` should be 2. Only the profile shows this fault.
#
# ## Work through a checklist
#
# | symptom | try | tool |
# |---|---|---|
# | refused while compiling | read the rule it names; sharded for a moment | `ShardedExecution` |
# | an operation is outside every block | enter the last block again | `poptorch.Block` |
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
# * Overflow in fp16 is obvious on a GPU, silent on an IPU.
# * A wrong placement causes an error if you are lucky. Otherwise only the profile shows it.
#
# **Takeaway:** make the run small, make it sequential, and find the first difference.
#
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# All of this runs unchanged with the Poplar SDK. Printed tensors then come from the IPU's own program, past
# Python's `sys.stderr`: look in the terminal. Names of tensors may differ a little: take them from
# `getTensorNames()`. Each anchored program compiles anew, which takes minutes: bisection saves more there.
#
# ## What transfers
#
# You can hunt faults like this on every accelerator: with eager mode or `jax.disable_jit()` instead of sharding,
# `torch.compile`'s minifier for bisection, and one rank instead of many. fp16 ends at 65,504 everywhere, but devices
# differ in what happens beyond it: check yours.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022), section on
#    sharded execution.
# 2. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs; execution traces with
#    accumulation 3 and 8. Their difference is five micro-batches, counted without the waiting in ExternalSync.
#
# **Next:** When a model still does not fit, you can move the optimiser's state off the chip.
