# %% [markdown]
# # CNN benchmarks: read a table of throughputs
#
# *Plan 55 minutes, 15 of them for the exercises; the notebook itself runs in under one. Before it: lessons 05
# and 06.*
#
# "14,000 images a second": of what, measured how, and would you get it? A benchmark page [1] for the IPU lists 17
# command lines for image classifiers, and not a single result. The course models them all. You will
#
# * measure a throughput as the page does,
# * read a batch-size curve,
# * choose a batch for two milliseconds,
# * say which batch still fits,
# * tell what was sent,
# * scale training from 4 to 64 IPUs,
# * find what a page does not say,
# * compare networks by more than images a second.

# %%
import time

import torch

import poptorch
from ipu_course import engine, show
from ipu_course.programs.bench import benchmark_page, changed, configuration, modelled_result, sweep
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.cnn_benchmarks.checks import PRINTED, check_budget, check_lines, check_throughput
from ipu_course.published_resnet50 import PUBLISHED_RATE, PUBLISHED_REPLICAS, published_resnet50
from ipu_course.lessons.cnn_benchmarks.explorer import explore_benchmark
from ipu_course.lesson import Lesson
from ipu_course.models import SmallNetwork
from ipu_course.lessons.cnn_benchmarks.rates import command_line_rows, show_machines, show_networks, show_sent
from ipu_course.lessons.cnn_benchmarks.batches import share_of_peak, show_batches, show_fit, show_latencies, show_steps

lesson = Lesson("09")
torch.set_num_threads(1)

# %% [markdown]
# ## Measure a throughput as the page does
#
# **Throughput** is images a second. The page's programs print a value after each **step**, here one call. It
# says: the first is always lower, so average the others. Why lower? See it happen, on your own machine:

# %% tags=["nbval-ignore-output"]
options = poptorch.Options().showCompilationProgressBar(False)  # keeps this page tidy
options.deviceIterations(4)
model = poptorch.inferenceModel(SmallNetwork(), options)
images = colour_shapes(train=True, images=64).pixels.float()

values = []
for _ in range(8):
    start = time.perf_counter()
    model(images)
    values.append(64 / (time.perf_counter() - start))
print("images a second, measured here:", ", ".join(f"{value:,.0f}" for value in values))
print(f"average of all {sum(values) / 8:,.0f}; without the first {sum(values[1:]) / 7:,.0f}")

# %% [markdown]
# The first call compiles the program and sends code and weights. A training run of days never notices, so for
# that leaving it out is fair. For ten batches it is not. Full size, ten steps of 100 batches of 16 images,
# ResNet-50 on one IPU (all figures below are modelled, if nothing else is said):

# %%
resnet50 = configuration("resnet50-infer-synthetic")
print(resnet50.command_line)
show_steps(modelled_result(changed(resnet50.settings, batch_size=16)))

# %% [markdown]
# The last line is the surprise: an average of *values* hides a long first step nearly as well as leaving it out.
# *All images by all seconds* does not.
#
# **Exercise 1** (5 min). `poprun` starts four **instances**: processes of the same program, here with one IPU each.
# Suppose that each prints the rate of its own IPU (the page does not say whose it is!). What is the throughput of
# all four, averaged as the page asks?

# %% tags=["exercise"]
show.table([{"instance": each, **{f"step {step}": value for step, value in enumerate(values, 1)}}
            for each, values in PRINTED.items()], index="instance")
### BEGIN SOLUTION
### STARTER: throughput = ...
throughput = sum(sum(values[1:]) / len(values[1:]) for values in PRINTED.values())
### END SOLUTION
check_throughput(throughput)

# %% [markdown] tags=["hint"]
# The page: "remove the first result from each thread". The instances run at the same time.

# %% [markdown] tags=["solution"]
# Averages over time, sums over instances. Take another reading of the values, that of all four together, and the
# same log means a quarter of it.

# %% [markdown]
# ## Read a batch-size curve
#
# The page runs ResNet-50 with batches of 1 to 90 images. `--synthetic-data` (`options.enableSyntheticData(True)`)
# means that no image is sent: the IPU computes on random numbers of its own, and the answers mean nothing.
#
# **Predict:** how many times the throughput of batch 1 has batch 90?

# %%
guess = lesson.predict("times the throughput of batch 1 that batch 90 has", ...)

curve = sweep(resnet50)  # the page's batch sizes
guess.reveal(curve[-1].images_per_second / curve[0].images_per_second if curve else None, "modelled")
if curve:
    print("batch 1:", *curve[0].profile.notes)
show_batches(curve)

# %% [markdown]
# Not 90 times: one image occupies the 1,472 tiles already, but badly. Every layer has costs that do not grow with
# the batch (exchanging weights, synchronisation), and a larger batch spreads them over more images. "Of peak"
# compares with the 250 TFLOP/s of the **matrix units**, the part of each tile that multiplies.
#
# **How far to trust this?** The error band follows from published rates of the same kind of work. For ResNet-50's
# inference there are some, of a similar chip [4]: unseen, the model came within 7 % of them; today's is 13 % too fast
# at batch 1, so little work that its band is wide. For inference with grouped convolutions (ResNeXt, EfficientNet)
# there are none, and the band goes from half the time to twice: believe the shape more than the numbers.
#
# ## Choose a batch for two milliseconds
#
# Somebody waits for an answer: now **latency** counts, the time from the call to the result of one batch. Which of
# these batches would you take if two milliseconds are allowed?

# %%
show_latencies(curve, budget_ms=2)

# %% [markdown]
# Two columns of a table, never at once: the throughput is that of 100 batches in one call, so that the
# call hardly counts. Alone, each batch pays for its own (an estimate: no cost of a call is published). And nothing
# is sent here: real images take longer.
#
# **Exercise 2** (5 min). Another program: a batch takes 0.3 ms on the IPU, and 0.05 ms more for each image; sending
# takes 0.03 ms an image, each call 0.7 ms besides. One after the other. Which is the largest batch within 2 ms, and
# how many images a second are that if each call waits for the one before?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: batch = ...
### STARTER: rate = ...
batch = 12
rate = 12 / 1.96e-3
### END SOLUTION
check_budget(batch, rate)

# %% [markdown] tags=["hint"]
# Write down the latency of *b* images: four terms, two of them with *b*.

# %% [markdown] tags=["solution"]
# *0.7 + 0.3 + 0.08 b = 2* gives *b = 12.5*. Twelve images take 1.96 ms. A service also waits until it has
# twelve images.

# %% [markdown]
# ## Say which batch still fits
#
# Larger batches are faster, so why does the page end at 90? Activations grow with the batch, and a tile has 624 KiB.
# A program does not fit if its fullest tile does not. The page's lists for ResNeXt-101 and EfficientNet-B0 end at 16
# and 32. Which of the three lists ends at a limit? Guess before you run the cell.

# %%
larger = sweep(resnet50, [90, 96, 100, 112], name="ResNet-50")
at_the_end = larger + sweep(configuration("resnext101-infer-synthetic"), [16], name="ResNeXt-101")
at_the_end += sweep(configuration("efficientnet-b0-infer-synthetic"), [32], name="EfficientNet-B0")
show_fit(at_the_end)
for each in larger:
    print(f"ResNet-50, batch {each.settings.batch_size}: {each.images_per_second:,.0f} images a second")

# %% [markdown]
# Batches up to 100 fit, but 96 is slower than 90, as its tiles exchange more for each image, and 100 is no faster. On
# a C600 card, too, 96 was slower (published; `docs/validation.md`). So 90 looks like the fastest that somebody found.
# With images sent, the page stops at 80. The other two lists end with room left. The end of a list may be a limit, or
# only the end of a list.
#
# ## Tell what was sent
#
# Synthetic data is the first of three tests. **Generated** data is random images from the host's memory: they
# are sent, but nothing is loaded. Only **real** data is loaded, decoded and sent. The page's other tables are for four
# IPUs, which share one host link, with generated images of 8 bits a number (lesson 04).
#
# **Predict:** per cent of the synthetic throughput that are left, batch 64.

# %%
guess = lesson.predict("per cent of the throughput left when 8-bit images are sent", ...)

four = changed(configuration("resnet50-infer-generated").settings, batch_size=64)
sent = {
    "synthetic": modelled_result(changed(four, data="synthetic", eight_bit_io=False)),
    "generated, 8 bits": modelled_result(four),
    "generated, 16 bits": modelled_result(changed(four, eight_bit_io=False)),
}
nothing, eight_bits = sent["synthetic"], sent["generated, 8 bits"]
guess.reveal(100 * eight_bits.images_per_second / nothing.images_per_second if nothing else None, "modelled")
show_sent(sent)

# %% [markdown]
# By default the IPU waits for its images, then computes (I/O tiles would overlap the two). With 16 bits, sending
# is most of the time. And the host would still have to load that many images: no row says that it can.
#
# In the explorer, look for the largest batch of ResNet-50 within 2 ms when 8-bit images are sent to four IPUs, then
# for a setting that the stream limits.

# %%
explore_benchmark()

# %% [markdown]
# ## Scale training from 4 to 64 IPUs
#
# ResNet-50 again, trained in a pipeline of four IPUs (lesson 06). An IPU-M2000 holds one such **replica**, a POD16
# four, a POD64 sixteen. For the POD64 the page names a file that it does not show; the course takes the POD16's
# options. The **global batch**, the images of one weight update, stays 16,384: so as replicas grow, the accumulation
# shrinks, 1,024, 256, 64.
#
# One training rate of this network *is* published, of an MLPerf run [2] on a POD16: no pipeline, 16 replicas of one
# IPU. The cell models that program, too; lesson 10 takes it apart.
#
# **Predict:** how many times the throughput of 4 IPUs have 64?

# %%
guess = lesson.predict("times the throughput of 4 IPUs that 64 have", ...)

machines = [modelled_result(configuration(f"resnet50-train-{name}")) for name in ("m2000", "pod16", "pod64")]
small, pod16, pod64 = machines
guess.reveal(pod64.images_per_second / small.images_per_second if small else None, "modelled")

mlperf = published_resnet50()
kept = modelled_result(changed(configuration("resnet50-train-pod64").settings, gradient_accumulation=1024))
if pod16:
    print(f"POD64 with the accumulation of the M2000: {kept.images_per_second / small.images_per_second:.2f} times")
    print(f"the page, POD16: {pod16.images_per_second:,.0f} images a second, modelled ({pod16.verdict})")
if mlperf:
    rate = mlperf.scaling((PUBLISHED_REPLICAS,))[0].samples_per_second
    print(f"MLPerf, POD16:   {rate:,.0f} images a second, modelled ({engine.memory_verdict(mlperf.profile())})")
print(f"MLPerf, POD16:   {PUBLISHED_RATE:,.0f} images a second, published: 43.19 s an epoch [2]")
show_machines(machines)

# %% [markdown]
# Not 16 times. Every update fills and flushes the pipeline, and adds up gradients between replicas. Both take the
# same time whether an update has 1,024 micro-batches or 64. With the accumulation of the M2000, a POD64 would be at
# nearly 16 times; but few networks learn well with a global batch of 262,144 images.
#
# MLPerf's rate agrees well, and its program fits, as it did. And with other options, the same network on the same
# machine is one and a half times as fast: "ResNet-50 on a POD16" is no specification.
#
# ## Find what a page does not say
#
# Here are the training lines that the page prints in full, and what stands above them. For EfficientNet it
# has two networks: the Standard one, whose convolutions between two 1 x 1 ones see a single channel
# (**group dimension** 1), and one modified for the IPU, with groups of 16 channels and an expand ratio of 4 in place
# of 6 [3].
#
# **Exercise 3** (5 min). A bug hunt. Which lines contradict their heading? And which line has another
# global batch than the other lines of its network?

# %% tags=["exercise"]
show.table(command_line_rows([each for each in benchmark_page().configurations
                              if each.settings.training and each.settings.machine != "POD64"]), index="line")
### BEGIN SOLUTION
### STARTER: contradicting = ...
### STARTER: odd_line = ...
contradicting = [5, 6]
odd_line = 5
### END SOLUTION
check_lines(contradicting, odd_line)

# %% [markdown] tags=["hint"]
# The global batch is batch size x accumulation x replicas.

# %% [markdown] tags=["solution"]
# Lines 5 and 6 print `--group-dim=16` under "Group Dim 1". Line 5 has 5 x 40 x 1 = 200 images an update, the others
# of its network 800. One more oddity: only EfficientNet's lines lack `--eight-bit-io`.

# %%
standard, modified = configuration("efficientnet-b4-g1-train-pod16"), configuration("efficientnet-b4-g16-train-pod16")
print("POD16, two headings, the same command line?", standard.command_line == modified.command_line)
print(*standard.deviations, sep="\n")
show.table([{"the page does not say": each.what, "the course takes": each.chosen}
            for each in benchmark_page().open_points], index="the page does not say")

# %% [markdown]
# Whoever runs lines 6 and 8 and compares "Standard" with "Modified" compares a program with itself.
#
# ## Compare networks by more than images a second
#
# Three networks, one IPU, synthetic data, 16 images a batch. EfficientNet-B0 was designed to need few operations.
#
# **Predict:** per cent of the peak that its throughput amounts to.

# %%
guess = lesson.predict("per cent of the peak that EfficientNet-B0 reaches", ...)

b0 = changed(configuration("efficientnet-b0-infer-synthetic").settings, batch_size=16)
networks = {
    "ResNet-50": curve[2] if curve else None,
    "ResNeXt-101": modelled_result(changed(configuration("resnext101-infer-synthetic").settings, batch_size=16)),
    "EfficientNet-B0": modelled_result(b0),
    "EfficientNet-B0, group dim 16": modelled_result(changed(b0, group_dim=16, expand_ratio=4)),
}
few_operations = networks["EfficientNet-B0"]
guess.reveal(100 * share_of_peak(few_operations) if few_operations else None, "modelled",
             "none; ResNet-50's training rate in MLPerf amounts to 18, without recomputation [2]")
show_networks(networks)

# %% [markdown]
# EfficientNet-B0 gives most images a second and uses the IPU least. Convolutions of one channel cannot
# fill matrix units made for groups of 16. The modified network has 1.6 times the operations, in about the same
# time. So images a second say nothing of efficiency, and operations a second nothing of use. Ask for the time and
# cost to the accuracy that you need, as the authors of the modified network did [3].
#
# ## Summary
#
# * Throughput: which steps, whose images, averaged how?
# * Batch size raises throughput and latency together, until memory ends it.
# * Synthetic data measures computing, generated data sending too; neither measures loading.
# * At a constant global batch, more replicas mean less accumulation: fill, flush and all-reduce show.
# * Settings decide, and pages leave some out, or contradict themselves.
#
# **A throughput without its settings is a rumour.**
# Your predictions, checks and ladder: `python -m ipu_course report`.
#
# ## On real hardware
#
# `python -m ipu_course bench --list` names the page's configurations; `--config resnet50-infer-synthetic --sweep`
# prints this lesson's table. With the Poplar SDK, `--run` measures. Leave the first step out, note all settings, and
# compare with synthetic data.
#
# ## What transfers
#
# Everything. On GPUs, the first steps compile kernels and tune; MLPerf separates *single stream* (latency) from
# *offline* (throughput); and vendors' tables end where their story does.
#
# ## References
#
# 1. Graphcore, *CNN Benchmarking on IPUs*, README of the TensorFlow CNNs in
#    [graphcore/examples](https://github.com/graphcore/examples): command lines, no results.
# 2. MLCommons, *[MLPerf Training v1.1](https://github.com/mlcommons/training_results_v1.1)*, log of Graphcore's POD16:
#    ResNet-50, an epoch of 1,281,167 images in 43.19 s.
# 3. Masters et al., *[Making EfficientNet More Efficient](https://arxiv.org/abs/2106.03640)*, 2021.
# 4. Graphcore, *PopRT*, examples: ResNet-50 with data made on the IPU. The table does not name the board; a C600 at
#    1.5 GHz is inferred.
#
# **Next:** [lesson 10](10_data_parallelism.ipynb), data parallelism.
