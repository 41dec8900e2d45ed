# %% [markdown]
# # Pipelining: one network on several IPUs
#
# Lesson 01 had to give up single precision, because ResNet-101 did not fit on two IPUs. On four it fits. But an
# image is only in one place at a time: cut a network into four parts the naive way, and **three of your four IPUs,
# 75 % of the machine, wait**. A pipeline puts them to work. Then we look at Graphcore's own pipelining tutorial [1]
# and find its four IPUs waiting again, for a reason that no pipeline can mend.
#
# *Plan 80 minutes, 32 of them for the exercises; the notebook itself runs in under one. Before it: lessons 00
# and 02.*
#
# You will
#
# * load and normalise the digits,
# * split a network into blocks,
# * choose stages and a strategy,
# * write the schedule of a pipeline,
# * explore what waits in the stashes,
# * predict the utilisation,
# * train, and choose what comes back,
# * find what limits the tutorial,
# * run the program and read its profile,
# * compare five cuts of a large network,
# * place ResNet-101 over four IPUs.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, figures, ladder, models, show
from ipu_course.datasets import mnist
from ipu_course.lessons.pipelining_mnist import (
    ConvLayer, balanced_cut, lesson, run_program, show_all_placements, show_cuts, show_placement, show_schedule,
    show_schedules, show_stages)

torch.set_num_threads(1)  # for so small a network, more threads would only wait for each other

# %% [markdown]
# ## Load and normalise the digits
#
# The hyper-parameters are the tutorial's. Its data are MNIST: 60,000 training and 10,000 test images of 28 x 28 grey
# pixels. We use 20,000 digits in the same format that come with the course;
# `mnist(train=True, root="mnist_data", download=True)` gets MNIST itself.
#
# torchvision's `ToTensor()` turns pixels from 0 to 255 into numbers from 0 to 1 (the tutorial says that the
# numbers stay between 0 and 255, and that the images are coloured; neither is so). `Normalize((0.1307,),
# (0.3081,))` then subtracts the mean and divides by the standard deviation of MNIST's pixels. Our digits were
# prepared in the same way.

# %%
learning_rate, epochs = 0.001, 3
batch_size, test_batch_size = 40, 8  # images in a micro-batch
gradient_accumulation = 10           # micro-batches in a weight update
training_iterations = 10             # weight updates in a call
inference_iterations = 100           # micro-batches in a call, when testing

training_set, test_set = mnist(train=True), mnist(train=False)
print(training_set.description)
by_hand = (training_set.pixels[:100, None] / 255 - 0.1307) / 0.3081
print("normalised as in the tutorial?", torch.allclose(by_hand, training_set.images[:100], atol=1e-6))

# %% [markdown]
# ## Split a network into blocks
#
# A **block** is a named part of `forward`. Blocks alone change nothing; they are the pieces that you place later.
# PopTorch has three ways to mark them:
#
# * `with poptorch.Block("B1"):` around lines of `forward`, as here,
# * `poptorch.BeginBlock(layer, "B1")` for a layer of a network that you cannot edit: the block begins when the
#   layer is called and lasts until the next one begins,
# * the decorator `@poptorch.BlockFunction("B1")` for a function.
#
# After a first `with` block, every operation needs a block. That is why the loss, which only training needs, enters
# `"B4"` a second time: it joins the last layer.

# %%
class Network(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layer1, self.layer2 = ConvLayer(1, 10, 5, 2), ConvLayer(10, 20, 5, 2)
        self.layer3, self.layer4 = torch.nn.Linear(320, 256), torch.nn.Linear(256, 10)

    def forward(self, x):
        with poptorch.Block("B1"):
            x = self.layer1(x)  # convolution, max-pooling, ReLU
        with poptorch.Block("B2"):
            x = self.layer2(x)
        with poptorch.Block("B3"):
            x = torch.relu(self.layer3(x.view(-1, 320)))
        with poptorch.Block("B4"):
            return self.layer4(x)

# %%
class TrainingModelWithLoss(torch.nn.Module):
    def __init__(self, model):
        super().__init__()
        self.model, self.loss = model, torch.nn.CrossEntropyLoss()

    def forward(self, images, labels=None):
        output = self.model(images)
        if labels is None:
            return output
        with poptorch.Block("B4"):
            return output, self.loss(output, labels)

def make_training_model(model, options):
    optimizer = poptorch.optim.AdamW(model.parameters(), lr=learning_rate)
    return poptorch.trainingModel(TrainingModelWithLoss(model), options, optimizer)

# %% [markdown]
# ## Choose stages and a strategy
#
# A **stage** is one or more neighbouring blocks that run together on one IPU; in training its forward and its
# backward pass are always on the same IPU. The **execution strategy** says when stages run. PopTorch has three:
# `PipelinedExecution`, `ShardedExecution` (one IPU at a time: lesson 07) and phased execution
# (`SerialPhasedExecution` and `ParallelPhasedExecution`, which swap parts of a network in from memory outside the
# chip; the tutorial leaves it out, and so do we).
#
# You need not always write stages. The default is `PipelinedExecution(AutoStage.SameAsIpu)`: each block's `ipu_id` is
# its stage. `AutoStage.AutoIncrement` makes every new block a stage. Blocks like ours, without an `ipu_id`, need
# explicit stages, or they go wrong in one of the two ways below.

# %%
def try_strategy(name, strategy, accumulation=10):
    options = poptorch.Options()
    options.setExecutionStrategy(strategy)
    options.Training.gradientAccumulation(accumulation)
    options.showCompilationProgressBar(False)
    model = make_training_model(Network(), options)
    try:
        model.compile(training_set.images[:40 * accumulation], training_set.labels[:40 * accumulation])
        print(f"{name}: compiles")
    except (poptorch.Error, AssertionError) as problem:
        print(f"{name}:", str(problem).replace("'poptorch_py_error': ", "").split(". ")[0])

try_strategy("the default", poptorch.PipelinedExecution())
try_strategy("AutoIncrement, 8 micro-batches", poptorch.PipelinedExecution(poptorch.AutoStage.AutoIncrement), 8)
try_strategy("explicit, 8 micro-batches", poptorch.PipelinedExecution("B1", "B2", "B3", "B4"), 8)

# %% [markdown]
# `AutoIncrement` counts from 1: IPU 0 is left for what comes before the first block, and here that is nothing. So it
# sees five stages, and one IPU would stay empty. Explicit stages say what you mean.
#
# Two numbers then fill the pipeline. **Gradient accumulation** sends this many micro-batches through it, one
# after the other, and averages their gradients into one weight update. **Device iterations** repeat that update
# on the device before the call returns to Python.
#
# **Predict:** how many images does one call of the training model take?

# %% tags=["prediction"]
images = lesson.predict("images in one call of the training model", ...)

# %%
options = poptorch.Options()
options.setExecutionStrategy(poptorch.PipelinedExecution(
    poptorch.Stage("B1").ipu(0), poptorch.Stage("B2").ipu(1),
    poptorch.Stage("B3").ipu(2), poptorch.Stage("B4").ipu(3)))  # in short: PipelinedExecution("B1", "B2", "B3", "B4")
options.Training.gradientAccumulation(gradient_accumulation)
options.deviceIterations(training_iterations)
options.outputMode(poptorch.OutputMode.All)  # explained further down
options.randomSeed(42)
options.showCompilationProgressBar(False)  # keeps this page tidy

images_per_call = batch_size * gradient_accumulation * training_iterations
images.reveal(images_per_call, "computed")

# %% [markdown]
# ## Write the schedule of a pipeline
#
# When IPU 0 has passed on micro-batch 1, it can start with micro-batch 2. Time is divided into **pipeline steps**:
#
# * In one step, an IPU runs at most one forward pass and then at most one backward pass.
# * Results move between IPUs only between steps.
# * The last stage has the loss: it runs a micro-batch's backward pass right after its forward pass, in the same step.
#
# **Exercise 1** (10 min). Write `when(stage, micro_batch)` for four stages: it returns the step of the micro-batch's
# forward pass and the step of its backward pass in this stage. Everything counts from 0. Start each pass as early as
# the rules allow; `show_schedule` draws what you wrote, and frames each pass that breaks a rule.

# %% tags=["exercise"]
def when(stage, micro_batch):
    ### BEGIN SOLUTION
    ### STARTER: ...
    return stage + micro_batch, 6 - stage + micro_batch
    ### END SOLUTION

show_schedule(when, stages=4, micro_batches=10)
lesson.check(1, when)

# %% [markdown] tags=["hint"]
# In which step does micro-batch 0 reach stage 1, 2, 3? In which step is it back in stage 2, 1, 0? Micro-batch 1 does
# the same one step later.

# %% [markdown] tags=["solution"]
# With *N* stages, the forward pass is in step *k + m* and the backward pass in step *2(N - 1) - k + m*. Ten
# micro-batches take 10 + 2(N - 1) = 16 steps. The tutorial's execution trace agrees: it shows 16 copies between IPUs.

# %% [markdown]
# ## Explore what waits in the stashes
#
# The first steps fill the pipeline (**ramp-up**), the last ones empty it (**ramp-down**), and then the weights
# change, once. Between its forward and its backward pass, a micro-batch's activations wait in a **stash**.
# PopTorch's order of passes is called **grouped**. In the **interleaved** order, neighbours alternate forward and
# backward passes.

# %%
lesson.explore(stages=4, accumulation=10)

# %% [markdown]
# **Exercise 2** (5 min). How many micro-batches wait on IPU 0 of eight IPUs with accumulation 20, in either schedule?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: grouped = ...
### STARTER: interleaved = ...
grouped = 15
interleaved = 8
### END SOLUTION
lesson.check(2, grouped, interleaved)

# %% [markdown] tags=["hint"]
# Set both sliders, then change the schedule in the menu. The table has a row for each IPU.

# %% [markdown] tags=["solution"]
# With *N* IPUs, stage *k* keeps *2(N - 1 - k) + 1* micro-batches when grouped, and *N - k* when interleaved; the last
# stage keeps none. PopTorch has only the grouped schedule.

# %% [markdown]
# **Three documents, one formula?** PopTorch refuses fewer than *2N - 1* micro-batches (the message above says 9
# for five stages), and your schedule is full from step 2N - 1 = 7 on. The optimisation guide [2] writes *2N + 1*
# stashed micro-batches on the first IPU, *2(N - 1) + 1* on the second, and *N + 1* when interleaved. This is the
# same if its *N* counts the IPUs **after** the first one. The tutorial says that the pipeline is full "after 2N+1
# steps where N is the number of IPUs", nine for four IPUs. By our count that is two too many, and we cannot ask;
# the 16 copies in its own trace mean 2 x 3 steps of ramp-up and ramp-down.

# %% [markdown]
# ## Predict the utilisation
#
# If all stages take equally long, an IPU works for ***m* / (*m* + *N* - 1)** of the time with *m* micro-batches.
# Counting steps, *m / (m + 2(N - 1))*, gives less, because steps of the ramps count as full ones although they
# hold one kind of pass only. It is a simple lower bound, and the guide's reason to choose an accumulation **much
# greater** than the number of stages.
#
# The price is a larger global batch. And a pipeline is no help when you need one answer quickly: the guide does not
# recommend it for low-latency inference, where a single sample passes all stages one after the other.

# %%
show.drawing(figures.utilisation((2, 4, 8), largest=64, marked=[(4, 10)]),
             "More micro-batches fill the pipeline: four IPUs with ten of them are busy for 76.9 % of the time.")

sample = TrainingModelWithLoss(Network())
micro_batch = (training_set.images[:batch_size], training_set.labels[:batch_size])
tutorial = engine.modelled_module(sample, micro_batch, options, poptorch.optim.AdamW(sample.parameters()))
profile = tutorial.profile()
print(f"modelled: {1e3 * profile.device_seconds_per_call:.1f} ms on the device for a call of the tutorial's network")

# %% [markdown]
# ## Train, and choose what comes back
#
# A training call returns the predictions and losses of its last micro-batch only: `OutputMode.Final`, the
# default. The tutorial chooses `OutputMode.All`, which is slower because everything goes to the host. `accuracy`
# works with both: it compares the predictions with as many labels from the end, `labels[-n:]`. With `Final` it
# would judge 40 images of 4,000, in steps of 2.5 %.
#
# The loader prepares the next call in another process (`Async`, lesson 05). In a script of your own, this needs
# `if __name__ == "__main__":`.

# %% tags=["nbval-ignore-output"]
def accuracy(predictions, labels):
    labels = labels[-len(predictions):]
    return 100 * (predictions.argmax(1) == labels).float().mean().item()

training_data = poptorch.DataLoader(options, training_set, batch_size=batch_size, shuffle=True,
                                    drop_last=True, mode=poptorch.DataLoaderMode.Async)
torch.manual_seed(42)
model = Network()
training_model = make_training_model(model, options)
for epoch in range(epochs):
    for data, labels in training_data:
        predictions, losses = training_model(data, labels)
    print(f"epoch {epoch + 1}: {losses.mean():.3f}, {accuracy(predictions, labels):.1f} % right (last call)")
training_data.terminate()
training_model.detachFromDevice()  # frees the four IPUs

# %% [markdown]
# Now test. The inference model shares `model`'s parameters, so it has the trained weights. Nothing is accumulated in
# inference, so device iterations fill the pipeline: PopTorch asks for at least *N*.

# %% tags=["nbval-ignore-output"]
test_options = options.clone()  # the loader has frozen the original
test_options.Training.gradientAccumulation(1)
test_options.deviceIterations(inference_iterations)
test_data = poptorch.DataLoader(test_options, test_set, batch_size=test_batch_size)
inference_model = poptorch.inferenceModel(model.eval(), test_options)
right = [accuracy(inference_model(data), labels) for data, labels in test_data]
print(f"this run: {sum(right) / len(right):.2f} % of {len(test_set)} test images right")
for key in ("training_accuracy", "test_accuracy"):
    print("published:", lesson.published(key).text, lesson.published(key).source)

# %% [markdown]
# ## Find what limits the tutorial
#
# Compilation took the tutorial 1 min 31 s for training and 35 s for inference. How fast is it after that? An
# epoch is 15 calls of 4,000 images, and you know the modelled time of a call on the device.
#
# **Predict:** how many calls a second did the tutorial's progress bar show, on four IPUs?

# %% tags=["prediction"]
calls = lesson.predict("calls a second in the tutorial", ...)

# %%
calls.reveal(lesson.published("calls_per_second").value, "published, in the second epoch [1]")
device = lesson.published("device_milliseconds")
print(f"{device.kind}: {device.text} {device.source}")

# %% [markdown]
# The tutorial's call takes 1,000 / 15.04 = 66.5 ms, and trace and model agree that the IPUs need 9 to 10 of them.
# The rest is the host: loading 4,000 images, normalising each of them in Python, and taking 100 results apart.
# The asynchronous loader works while the IPUs compute, so the slower of the two sets the pace. It is the loader,
# most likely; the page does not say how many processes load.
#
# **Exercise 3** (5 min). For what percentage of the time do the tutorial's IPUs work? How many times as fast would
# the host have to be before they limit the training?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: working = ...
### STARTER: speed_up = ...
working = 100 * 9.5 / 66.5
speed_up = 66.5 / 9.5
### END SOLUTION
lesson.check(3, working, speed_up)

# %% [markdown] tags=["hint"]
# Compare the time of a call on the device with the time from one call to the next.

# %% [markdown] tags=["solution"]
# 9.1 to 9.9 of 66.5 ms are 14 to 15 %, and 66.5 is about seven times as long. Better stages would not change the 15
# calls a second at all: first find the bottleneck, then tune.

# %% [markdown]
# ## Run the program and read its profile
#
# The tutorial ends with a script. The course has the same program, with the same options. Its four example commands
# stand at the end of the help. Sharded runs and offloaded optimiser state compute the same and are the subjects of
# lessons 07 and 08. `--profile` writes a report for each model: `report.html` to read, `trace.json` for Perfetto.

# %% tags=["nbval-ignore-output"]
run_program("--help")
run_program("--epochs 1 --profile --profile-dir pipeline_profile")

# %% [markdown]
# The tutorial reads three things from such a profile. Do the stages fit, with always-live and not-always-live
# memory (the *liveness* report)? Do they take equally long? How much goes between IPUs? Here is the second one.
# All stages but the last run their forward pass twice: a pipelined PopTorch model keeps only what enters a stage,
# and **recomputes** the rest for the backward pass.

# %%
show_stages(profile, ["B1 on IPU 0", "B2 on IPU 1", "B3 on IPU 2", "B4 on IPU 3"])
print("on the device, this program is limited by:", profile.limited_by)

# %% [markdown]
# The longest stage sets the pace, so the guide advises to break it up and to balance the rest again; shortening any
# other stage gains nothing. But here not even that would help the device: so small a network spends more time on
# **streams**, the transfers between host and IPUs, than on any stage.
#
# ## Compare five cuts of a large network
#
# Now ResNet-101 of the workshop [3] (lessons 01 to 05) in half precision over two IPUs. Its third group of layers
# has 23 blocks, and the workshop begins the second IPU with the ninth, `layer3[8]`.
#
# **Predict:** which of the blocks 5 to 9 of `layer3` gives the fastest update?

# %% tags=["prediction"]
cut = lesson.predict("block of layer3 before which the fastest cut is", ...)

# %%
resnet = torchvision.models.resnet101().half()
poptorch.BeginBlock(resnet.layer3[8], ipu_id=1)
optimizer = poptorch.optim.AdamW(resnet.parameters(), accum_type=torch.half, loss_scaling=1000,
                                 first_order_momentum_accum_type=torch.half)
two_ipus = poptorch.Options()
two_ipus.Training.gradientAccumulation(8)
half = engine.modelled_module(
    models.ClassifierWithLoss(resnet), ladder.micro_batch(torch.half), two_ipus, optimizer)
cuts = {block: half.profile(split=f"model.layer3.{block}") for block in (5, 6, 7, 8, 9)}
show_cuts(cuts, lesson.published("stage_ratio").value)
cut.reveal(balanced_cut(cuts), "modelled", published="stage_ratio")

# %% [markdown]
# **Too close to call.** The model names a winner, but all five lie within its own error. Worse, it says that IPU
# 1 computes for less time, compared with IPU 0, than the published trace shows. Make IPU 1 slower until the ratio
# agrees (the third column of times), and another cut wins. The honest answer is a range, and a measurement on
# your own machine. Memory is a further reason to prefer one: look at the last column.
#
# Could another schedule help? The guide says that the interleaved one saves memory and may be slower. The model
# agrees, but once activations are recomputed, there is little left to save:

# %%
show_schedules(half)

# %% [markdown]
# ## Place ResNet-101 over four IPUs
#
# Back to the opening: ResNet-101 in **single precision**, micro-batches of 64 images, accumulation 16, four IPUs.
# It has 3, 4, 23 and 3 blocks in `layer1` to `layer4`. Early blocks have large activations, late ones have many
# weights. So **time and memory ask for different cuts**.

# %%
wide = torchvision.models.resnet101()
four_ipus = poptorch.Options()
four_ipus.Training.gradientAccumulation(16)
single = engine.modelled_module(models.ClassifierWithLoss(wide), ladder.micro_batch(torch.float32), four_ipus,
                                poptorch.optim.AdamW(wide.parameters()))

# %% [markdown]
# **Exercise 4** (12 min). Write `place(resnet)`: begin blocks on the IPUs 1, 2 and 3 so that every IPU fits into
# 624 KiB a tile and the update is at least 95 % as fast as with the best of all placements. Your best score
# counts.

# %% tags=["exercise"]
def place(resnet):
    ### BEGIN SOLUTION
    ### STARTER: ...
    poptorch.BeginBlock(resnet.layer2[3], ipu_id=1)
    poptorch.BeginBlock(resnet.layer3[7], ipu_id=2)
    poptorch.BeginBlock(resnet.layer3[16], ipu_id=3)
    ### END SOLUTION

show_placement(place, single)
lesson.check(4, place, using=single)

# %% [markdown] tags=["hint"]
# Start with three cuts that give every IPU about eight blocks. Look at the longest bar on the left: shorten that
# stage by one block at either end. The last stage computes its forward pass once only, but holds most of the
# weights.

# %% [markdown] tags=["solution"]
# `layer2[3]`, `layer3[7]` and `layer3[16]` are the best of all placements before whole blocks that fit. One block
# more on IPU 3 (`layer3[15]`) would be faster still, but takes 640 KiB: there memory decides.

# %%
show_all_placements(single)

# %% [markdown]
# How special is the best placement? Not very: many others are within the model's error of it. Take one of them
# that leaves memory free, and measure two or three.
#
# ## Summary
#
# * Blocks are named pieces, stages put them on IPUs, and the strategy decides who works when.
# * Accumulation fills the pipeline: equal stages work for *m / (m + N - 1)* of the time. PopTorch asks for *2N - 1*.
# * The longest stage sets the pace, and the fullest tile decides whether it fits. Neither matters while the host
#   limits.
# * It cost a larger global batch, a second forward pass, and a minute and a half of compilation.
#
# Your predictions and exercises: `python -m ipu_course report`.
#
# ## On real hardware
#
# With the Poplar SDK, `import poptorch` finds Graphcore's package, and all of this runs. `--profile` then writes
# `profile.pop` for PopVision's Graph Analyser: its execution trace shows how long each stage really takes.
#
# ## What transfers
#
# Micro-batches, ramps and balanced stages are the same on GPUs and TPUs. GPipe [4] runs all forward passes first; the
# interleaved order is the "one forward, one backward" of `torch.distributed.pipelining`.
#
# ## References
#
# 1. Graphcore, *PopTorch Parallel Execution Using Pipelining*, tutorial, Poplar SDK 3.0 (2022).
# 2. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, section 4.2.
# 3. *ResNet-101 on CIFAR-10*, hands-on of a workshop on IPUs (2022): two Mk2 IPUs, execution trace and epoch times.
# 4. Huang et al., *[GPipe](https://arxiv.org/abs/1811.06965)*, 2019.
#
# **Next:** A pipeline works on many micro-batches at once, which makes every fault hard to see. Take it away, and
# hunt for one.
