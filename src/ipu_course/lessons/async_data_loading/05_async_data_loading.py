# %% [markdown]
# # Asynchronous data loading: load while the IPUs work
#
# After lesson 04 an epoch takes 13 seconds [1], and the IPUs work for less than a third of that (modelled). For the
# rest of the time they wait for Python to load images. When the images are there, the IPUs work and Python waits. In
# this lesson both work at the same time. The workshop needed one argument of the loader for this step.
#
# *Plan 50 minutes, 20 of them for the exercises; the notebook itself runs in under one. Before it: lesson 04.*
# You will
#
# * read timelines of host and device, and find the bottleneck,
# * load ahead in another process,
# * predict when calls end, in code,
# * choose a buffer for uneven loads,
# * follow the bottleneck,
# * measure even and uneven loaders on your machine,
# * guard the main module, and see what happens without a guard.

# %%
import torch
import torchvision

import poptorch
from ipu_course import engine, ladder, models, show
from ipu_course.datasets import colour_shapes
from ipu_course.lessons.async_data_loading import (
    MeasuredLoader, SlowImages, call_parts, lesson, run_scripts, show_loaders, show_traces, three_traces, time_calls)

# %% [markdown]
# ## Read timelines
#
# This is the workshop's program after lesson 04. It trains ResNet-101 on two IPUs, with 2,048 uint8 images in one
# **call** of the training model. `DataLoaderMode.Sync` is the default: the program loads, then calls, then loads
# again. The host's times were fitted on the published epochs, as lesson 04 explains.

# %%
torch.set_num_threads(1)
options = poptorch.Options()
options.deviceIterations(4)
options.Training.gradientAccumulation(8)
model = torchvision.models.resnet101()
model.layer3[8] = poptorch.BeginBlock(model.layer3[8], ipu_id=1)  # from here on: the second IPU
model = models.ClassifierWithLoss(model, models.NormaliseOnDevice(torch.float16)).half()
optimizer = poptorch.optim.AdamW(model.parameters(), lr=0.001, loss_scaling=1000, accum_type=torch.float16,
                                 first_order_momentum_accum_type=torch.float16)
program = engine.modelled_module(model, ladder.micro_batch(torch.uint8), options, optimizer)
sync = program.profile(host=ladder.host(eight_bit_io=True))
show_traces({"Sync": call_parts(sync)}, 1.2, "Host and IPUs, modelled with a fitted host",
            "With Sync, host and IPUs take turns: one of them always waits.")

# %% [markdown]
# With `DataLoaderMode.Async`, another process loads the next call's images while this call runs.
#
# **Predict:** how many images per second does the program then train on? The workshop published 1.77 calls of 2,048
# images per second with Sync [1], which makes 3,625 images per second. The figure above shows the times that you need.

# %% tags=["prediction"]
rate = lesson.predict("images per second with asynchronous loading", ...)

# %%
background = program.profile(host=ladder.host(eight_bit_io=True, asynchronous=True))
rate.reveal(background.samples_per_second, "modelled, host costs fitted", published="asynchronous_rate")
both = {"Sync": call_parts(sync), "Async": call_parts(background)}
show_traces(both, 1.2, "Host and IPUs on one axis, modelled with a fitted host",
            lesson.takeaway("one_axis"))

# %%
traces = three_traces(program)
show_traces(traces, 1.0, "Three settings on one axis, modelled",
            "In each trace, the other kinds of work wait for one of the three. Which one?")

# %% [markdown]
# This figure shows three other settings of the program: A, B and C. All of them load ahead.
#
# **Exercise 1** (4 min). What is the bottleneck in each of them: `"loading"`, the `"calls"` on the host, or the
# `"IPUs"`?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: trace_a, trace_b, trace_c = ..., ..., ...
trace_a, trace_b, trace_c = "loading", "IPUs", "calls"
### END SOLUTION
lesson.check(1, trace_a, trace_b, trace_c, using=traces)

# %% [markdown] tags=["hint"]
# If the loading never waits, it is the bottleneck. If the calls follow each other without a gap, compare their two
# parts: the longer of the host's part and the IPUs' part is the bottleneck.

# %% [markdown] tags=["solution"]
# A needs faster loading: more workers, or less work for each image. B needs faster IPUs, or more of them. C makes many
# short calls: more device iterations help (lesson 03), and a faster loader does not.

# %% [markdown]
# ## Load ahead
#
# Let *L* be the time to load one call's data, and *C* the time of the call itself, on the host and on the IPUs. With
# Sync, one call follows another after *L + C*, and with Async after *max(L, C)*. If *w* worker processes share the
# loading, each on a core of its own, it is *max(L / w, C)*. So Async can at most double the rate, which happens when
# *L = C*. If one of the two is much longer than the other, Async gains little. These three formulas are the *closed
# forms* in the explorer's table below.
#
# `poptorch.DataLoader` has three modes. **Sync** loads as PyTorch does. **Async** starts a process that writes each
# call's data into a ring of slots in shared memory. **AsyncRebatched** also joins the incomplete batches of several
# workers into full calls. Without shuffling, the items of a data set arrive in the same order in every mode. Call
# `terminate()` when you no longer need an asynchronous loader, even after an error; a `finally` block does that.
#
# The loader drops an incomplete last call, because a compiled program takes only full calls. (`drop_last=True` is the
# default in PopTorch, but not in PyTorch.)
#
# There is a trap. The next cell collects all items of an asynchronous loader in a list and prints their numbers. The
# loader has eight items, numbered from 0 to 7. What do you expect to see?

# %%
tidy = poptorch.Options()
tidy.showCompilationProgressBar(False)  # keeps this page tidy
numbers = torch.utils.data.TensorDataset(torch.arange(8).repeat_interleave(4))  # four equal rows for each item
loader = poptorch.DataLoader(tidy, numbers, batch_size=4, mode=poptorch.DataLoaderMode.Async,
                             async_options={"buffer_size": 3, "load_indefinitely": False})
try:
    collected = [item for item, in loader]
finally:
    loader.terminate()
print("collected:", [int(item[0]) for item in collected])

# %% [markdown]
# The loader only **lends** you its tensors. They are views of the three slots, and later items overwrite them. You
# never notice this in a training loop, because you use each item before you ask for the next one.
#
# **Exercise 2** (3 min). Write a function `keep` of one tensor, so that `[keep(item) for item, in loader]` holds the
# items 0 to 7.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: keep = ...
keep = torch.clone
### END SOLUTION
lesson.check(2, keep)

# %% [markdown] tags=["hint"]
# Which methods of a tensor always copy the data? Which ones copy it only sometimes, or never?

# %% [markdown] tags=["solution"]
# `clone()` copies. `detach()`, `view()` and `numpy()` share the memory; `to()` and `contiguous()` copy only when they
# have something to change. The results of a model are new tensors, so you need not copy them.

# %% [markdown]
# ## Predict when calls end
#
# How far can the loader run ahead? It writes into a ring of `buffer_size` slots (3 by default). The data of the
# running call stay in their slot until that call ends. Loads are not always equally long: a large file or a slow disk
# makes one of them late.
#
# **Exercise 3** (9 min). Write `call_ends(loads, call, slots)`. `loads` is a list with the seconds of each load, and
# every call takes `call` seconds. Return the list of the times at which the calls end. The clock starts at 0 with all
# slots empty. One process loads, one call's data after the other. It starts a load as soon as the load before has
# ended *and* a slot is free. A call starts as soon as its data are there *and* the call before it has ended.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def call_ends(loads, call, slots):
### STARTER:     ...  # keep two lists: when each load has ended, and when each call has
def call_ends(loads, call, slots):
    loaded, ended = [], []
    for number, load in enumerate(loads):
        slot_free = ended[number - slots] if number >= slots else 0.0
        loader_free = loaded[-1] if loaded else 0.0
        loaded.append(max(slot_free, loader_free) + load)
        previous = ended[-1] if ended else 0.0
        ended.append(max(loaded[-1], previous) + call)
    return ended
### END SOLUTION
lesson.check(3, call_ends)

# %% [markdown] tags=["hint"]
# Count from 0. With 2 slots, load 2 needs the slot of call 0, so it starts at `max(loaded[1], ended[0])`. In general,
# load n needs the slot of call n - slots.

# %% [markdown] tags=["solution"]
# With one slot the loader cannot load ahead: each load waits for the call before it, as with Sync.

# %% [markdown]
# ## Choose a buffer
#
# You set the size of the ring with `async_options={"buffer_size": 5}`, for example. With `"early_preload": True` the
# loader begins to fill the ring before you ask for the first item. Every slot costs host memory. If all loads take
# equally long, two slots are enough. The explorer follows the same rules as your function.

# %%
lesson.explore()

# %% [markdown]
# **Exercise 4** (4 min). Loading takes 150 ms on average and a call takes 200 ms, so the loader is fast enough on
# average. Now make the loads uneven, without workers. For what percentage of the time do the IPUs wait with 3 slots?
# What is the smallest number of `slots` on the slider with which they no longer wait?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: wait_percent = ...
### STARTER: slots = ...
wait_percent = 5
slots = 5
### END SOLUTION
lesson.check(4, wait_percent, slots)

# %% [markdown] tags=["hint"]
# Tick the box below the sliders and read the column "IPUs wait for data".

# %% [markdown] tags=["solution"]
# With 3 slots a call takes 210 ms instead of 200 on average. The long load takes 450 ms, and the buffer must hold the
# data of the calls that run during that time. A buffer evens out uneven loads, but it does not make a slow loader
# faster.

# %% [markdown]
# ## Follow the bottleneck
#
# The ladder has a new step. **No published run used workers**: the table below the ladder is a what-if, and it assumes
# that workers share the loading perfectly. In its last column, "stage 0" is the first IPU.

# %%
lesson.show_ladder("asynchronous loading")
rows = []
for workers in (0, 2, 4):
    profile = program.profile(host=ladder.host(eight_bit_io=True, asynchronous=True, workers=workers))
    rows.append({"workers (what if)": workers, "load, ms per call": f"{1000 * call_parts(profile).load:.0f}",
                 "all but loading, ms": f"{1000 * call_parts(profile).rest:.0f}",
                 "seconds per epoch": f"{ladder.epoch_seconds(profile):.1f}", "bottleneck": profile.limited_by})
show.table(rows, index="workers (what if)")

# %% [markdown]
# ## Measure even and uneven loaders
#
# Does the rule of exercise 3 hold on a real machine? Async gains most where *L = C*, so the next cell sets up that
# case here. It first measures a call of a small network alone. Then `SlowImages` sleeps before each batch: the even
# loads sleep as long as one call takes, and the uneven loads have the same mean, but every fifth is six times as long
# as the others. So loading and computing take equally long, on average.

# %% tags=["nbval-ignore-output"]
mode = poptorch.DataLoaderMode
network = models.WithLoss(models.SmallNetwork())
training_model = poptorch.trainingModel(network, tidy, poptorch.optim.SGD(network.parameters(), lr=0.01))

def measured(load_ms, slots):
    images = SlowImages(colour_shapes(train=True, images=26 * 32), load_ms, batch_size=32)
    options = {"mode": mode.Async, "async_options": {"buffer_size": slots}} if slots else {"mode": mode.Sync}
    return time_calls(poptorch.DataLoader(tidy, images, batch_size=32, **options), training_model)

alone = measured([0], slots=0)
even, uneven = [alone.milliseconds], [alone.milliseconds * part for part in (0.5, 0.5, 0.5, 0.5, 3)]
print(f"a call alone: {alone.milliseconds:.0f} ms; it had a core for {alone.core_share:.0%} of the time")
loaders = {"even, Sync": (even, 0), "even, Async, 3 slots": (even, 3),
           "uneven, Async, 3 slots": (uneven, 3), "uneven, Async, 8 slots": (uneven, 8)}
show_loaders(alone.milliseconds, {name: MeasuredLoader(*how, measured(*how)) for name, how in loaders.items()})

# %% [markdown]
# The rule leaves out what waking up, copying and handing over cost, so the measured times are somewhat longer. Even
# loads are hidden behind the calls with 3 slots. Uneven loads with the same mean need more of them.
#
# **Why is Async hardly faster on a shared server?** The loader needs a processor core of its own beside the core that
# runs the call. If all cores are busy, the two share a core, and *max(L, C)* becomes *L + C* again. A loader that
# sleeps hardly notices, but one that decodes images does. The first line of the output says how much of the time the
# call had a core: a share well below 100 % means that other programs took it.
#
# ## Guard the main module
#
# An asynchronous loader starts a new Python process (with the start method *spawn* or *forkserver*). The new process
# imports your script again, because it has to find your classes. If the script makes the loader at its top level, this
# import would start another process, and so on. Python stops that with an error. The guard
# `if __name__ == "__main__":` prevents it.
#
# A new process cannot import a notebook, so a notebook needs no guard. But for the same reason it cannot find the
# notebook's classes: **define your data sets in a module**. The next cell tries all three cases in processes of their
# own, with a time limit.

# %%
script = """
import poptorch, torch
class Numbers(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.tensor([index])
def main():
    spawn = {"sharing_strategy": poptorch.SharingStrategy.SharedMemory}
    loader = poptorch.DataLoader(poptorch.Options(), Numbers(), batch_size=4, mode=poptorch.DataLoaderMode.Async,
                                 async_options=spawn)
    print(len(list(loader)), "items")
    loader.terminate()
"""
guarded = script + "if __name__ == '__main__': main()"
for name, end in run_scripts({"no guard": script + "main()", "guard": guarded}, {"notebook": guarded}).items():
    print(f"{name}: {end.verdict}\n")

# %% [markdown]
# ## Summary
#
# * A call takes *L + C* with Sync, *max(L, C)* with Async, and *max(L / w, C)* with *w* workers.
# * The workshop's epoch went from 13 to 8 s, and loading is still the bottleneck. In the what-if, two workers are
#   enough to make the IPUs the bottleneck.
# * The price is a process that needs a core, and host memory for its slots.
# * An asynchronous loader lends its tensors: clone what you want to keep.
# * A buffer evens out uneven loads. It does not make a slow loader faster.
# * Guard your scripts, define data sets in modules, and terminate your loaders.
#
# **Find out whether loading or the call is slower before you speed up either of them.**
#
# ## On real hardware
#
# The same cells run with the Poplar SDK. Time an empty loop over your loader and compare it with a training epoch. If
# the two are nearly equal, the host is the bottleneck. PopVision's System Analyser shows host and IPUs on one axis.
#
# ## What transfers
#
# PyTorch's `num_workers`, `prefetch_factor` and `persistent_workers` do the same for GPUs, and they need the same
# guard. `prefetch` of `tf.data` is such a buffer, too. Every pipeline works like this: when two steps overlap, you
# wait for the longer one and no longer for their sum.
#
# ## References
#
# 1. IPU training workshop, day 03, *Memory and Performance Optimisation on the IPU* (2022), sections
#    8-bit I/O and Asynchronous Data Loading.
# 2. Graphcore, *[Efficient data batching](https://docs.graphcore.ai/projects/poptorch-user-guide/en/latest/batching.html)*,
#    PopTorch user guide: `DataLoader` and `AsynchronousDataAccessor`.
#
# **Next:** Loading now overlaps with the IPUs' work, and in a pipeline the IPUs overlap their work with each other.
