# %% [markdown]
# # Reading a profile: from a slow program to the part that limits it
#
# Three programs train on IPUs. Nothing crashes, and the losses fall. But they reach **5.5, 12.3 and 2.5 %** of what
# their matrix units can do (modelled). A colleague has doubled the accumulation of all three, because that helped last
# time. One became 1.8 times as fast, and the other two hardly changed. The next cell shows them as they are.
#
# At the end of this lesson, each is at least 1.4 times as fast, and none of the changes is longer than three lines.
# The profile says which lines.
#
# *Plan 75 minutes, 38 of them for the exercises; the notebook itself runs in under one. Before it: lessons 05, 06 and
# 08.* You will
#
# * write a report, and find it,
# * match each picture to PopVision's,
# * read a trace in code,
# * separate compute, exchange and synchronisation,
# * name the bottleneck of three programs,
# * mend them, and compare two reports,
# * profile a program of your own,
# * compare ideal and achieved scaling.

# %%
import json

import torch
from torch import nn

import poptorch
from ipu_course import show
from ipu_course.lessons.reading_a_profile import (
    compare_c, efficiency_percentage, exchange_percentage, lesson, mend_all, scaled_records, show_files,
    show_mended, show_phases, show_programs, show_replicas, show_roofline, show_steps, slow_programs, start_program,
    workshop_profile)
from ipu_course.models import WithLoss

torch.set_num_threads(1)
programs = slow_programs()
show_programs(programs)

# %% [markdown]
# ## Write a report, and find it
#
# There are two ways to get a report. In your own program, write `options.enableProfiling("report")`. For a program that
# you cannot change, set an environment variable. `POPLAR_ENGINE_OPTIONS` holds a JSON object whose values are text,
# for example `{"autoReport.directory": "report"}`. Three of its options matter here:
#
# * `autoReport.directory` is the folder of the report.
# * `autoReport.all`, "true" or "false", switches all reports on.
# * `autoReport.outputExecutionProfile` does that for the **execution** alone. Without it, only memory is reported. On
#   hardware this is much faster, and all you get when a program does not fit ([lesson 13](13)).
#
# **Exercise 1** (6 min). Write `engine_options(folder, memory_only=False)`, which returns the text of that variable.
# The check compiles a small program with it, twice, and looks at what was written. The next cell then starts a whole
# program with your text: a network of four stages that trains on 1,024 digits, and knows nothing of reports.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def engine_options(folder, memory_only=False):
### STARTER:     ...
def engine_options(folder, memory_only=False):
    options = {"autoReport.all": "true", "autoReport.directory": folder}
    if memory_only:
        options["autoReport.outputExecutionProfile"] = "false"
    return json.dumps(options)
### END SOLUTION
lesson.check(1, engine_options, using=programs)

# %% [markdown] tags=["hint"]
# Begin with a dictionary, add one entry for `memory_only`, and turn it into text with `json.dumps`.

# %% [markdown] tags=["solution"]
# `autoReport.all` is the default of the other switches, so one of them can be switched off again. In a shell:
# `POPLAR_ENGINE_OPTIONS='{"autoReport.all": "true", "autoReport.directory": "report"}' python program.py`.

# %%
report = start_program(engine_options)
show_files(report)
show.timeline(report.profile, "Four stages of one small network: the first works most, the last one least.")

# %% [markdown]
# In the picture, nothing happens for almost half a millisecond: that is the start of the call on the device.
#
# Now run the same command in a terminal. Open `report/report.html` in your browser, read *What limits it*, and zoom
# into the timeline with Ctrl and the wheel. Then drag `report/trace.json` into the window of Perfetto [4].
#
# Keep the profiled run **short**: one or two calls are enough, because the next thousand are alike. On hardware, also
# switch the executable cache off [1], or nothing is compiled and nothing written. Profiling adds code and variables, so
# that a profiled program needs more memory and more time than usual. Compare profiles with each other, and rates with
# rates of runs without profiling.
#
# ## Match each picture to PopVision's
#
# With Graphcore's SDK, the same options write `profile.pop`, which you open in the PopVision Graph Analyser [3]. Here
# you get a page and a trace instead. They answer the same questions:
#
# | question | PopVision | here |
# |---|---|---|
# | Does it fit, and what would help? | Summary, Insights | *Summary*, *What would fit* in `report.html` |
# | Is the memory even over the tiles? | Memory report | *Memory*; `show.memory_per_tile` |
# | Which step is the peak, and what is alive then? | Liveness report | *Memory*, the hill ([lesson 11](11)) |
# | Which layers take the cycles? | Program tree, Operations | *Modules and ops*, with your lines of code |
# | Who waits for whom, and when? | Execution trace | *Timeline*; `trace.json` in Perfetto [4]; `show.timeline` |
# | What are the cycles spent on? | Execution trace, its summary | *What limits it*; `python -m ipu_model report` |
# | Is it the host or the IPU that waits? | System Analyser | *Timeline*, first rows; `show.host_and_device` |
# | What has my change done? | two reports opened together | `python -m ipu_model compare before after` |
#
# Always ask in the same order: does it fit, who waits, for what, and which layer is that?
#
# ## Read a trace in code
#
# A picture is good for one program. If you have thirty, you want a number. `trace.json` is a list of events, in a
# format that many tools write [4]. Three kinds of them matter:
#
# ```python
# {"ph": "M", "name": "thread_name", "tid": 2, "args": {"name": "IPU 0"}}                # row 2 is called IPU 0
# {"ph": "X", "name": "forward 1", "cat": "forward", "tid": 2, "ts": 814.4, "dur": 8.6}  # from ts on, for dur
# {"ph": "X", "name": "wait", "cat": "wait", "tid": 2, "ts": 823.0, "dur": 0.5}          # all in microseconds
# ```
#
# The number in a name is that of the micro-batch: this call has two device iterations of eight micro-batches each, so
# they go from 1 to 16. Rows such as `IPU 0 ops` have the ops inside the passes, and `host` has what PopTorch does.
# Other events with `"ph": "M"` name the process and put the rows in order.
#
# **Exercise 2** (8 min). Write `busy(trace)`, which returns for each IPU the share of the step that its events take,
# waits left out, such as `{"IPU 0": 0.5, "IPU 1": 0.25}`. The step lasts from the first event of any IPU to the end of
# the last one. The check tries it on a trace of its own. Then it compares your shares for `report.trace` with what the
# report says, and with the cycles that the model counts for each IPU.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def busy(trace):
### STARTER:     events = trace["traceEvents"]
### STARTER:     ...
def busy(trace):
    events = trace["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    rows = {row: name for row, name in names.items() if name.startswith("IPU") and not name.endswith("ops")}
    passes = [event for event in events if event["ph"] == "X" and event["tid"] in rows]
    step = max(event["ts"] + event["dur"] for event in passes) - min(event["ts"] for event in passes)
    shares = dict.fromkeys(rows.values(), 0.0)
    for event in passes:
        if event["cat"] != "wait":
            shares[rows[event["tid"]]] += event["dur"] / step
    return shares
### END SOLUTION
lesson.check(2, busy, using=report)

# %% [markdown] tags=["hint"]
# First make a dictionary from `tid` to the name of the row. Then keep the events with `"ph": "X"` whose row is an IPU
# without "ops". The step's length is the same for all IPUs.

# %% [markdown] tags=["solution"]
# The pipeline's four stages are 0.54, 0.37, 0.22 and 0.18 of the time at work. Three numbers meet here: yours, the one
# in the alternative text of the picture above, and one from the cycles by phase: all cycles, less those of ExternalSync
# and of the first start.

# %% [markdown]
# ## Separate compute, exchange and synchronisation
#
# Inside a pass, all tiles of an IPU take the same steps ([lesson 00](00)): they exchange data, compute, and
# synchronise. These are **bulk-synchronous** phases, and PopVision counts the cycles of each. For the workshop's
# ResNet-101 in half precision with accumulation 3, a trace of hardware has been published [2].
#
# **Predict:** what percentage of IPU 0's cycles is exchange between tiles?

# %% tags=["prediction"]
exchange = lesson.predict("percentage of IPU 0's cycles that is exchange between tiles", ...)

# %%
workshop = workshop_profile()
exchange.reveal(exchange_percentage(workshop), "modelled", published="exchange_percentage")
show_phases(workshop)
show_steps(programs)

# %% [markdown]
# Read such a table with three questions:
#
# * **Computing?** OnTileExecute. If it is most of the time, ask whether the matrix units are well used. *What limits
#   it* in `report.html` divides it further, and has a roofline of all products.
# * **Moving?** DoExchange inside an IPU, GlobalExchange between IPUs, StreamCopyMid from and to the host or streaming
#   memory (for the latter, PopVision says StreamCopyMidRemoteBuffer).
# * **Waiting?** ExternalSync for other IPUs, InternalSync for the slowest tile (in the IPU Model, a constant for each
#   exchange), StreamCopyBegin for the host.
#
# Most of the model's rows were *fitted* to this very trace, so their agreement proves nothing; the last two were not.
# In the figure, a convolution exchanges for about a third of its time, and the normalisation is short, but it is not
# free. The model knows the sum of each phase of an op, and not their order; the figure draws the exchange first and
# the synchronisation last.
#
# ## Name the bottleneck of three programs
#
# Now look at the three programs. Program A loads ahead, and we assume that a core needs 2 ms for a photograph. For B
# and C, loading costs nothing. These words name what can limit a program:
#
# | word | the time goes to |
# |---|---|
# | `loader` | loading samples, when the IPUs wait for it |
# | `host call` | PopTorch's work for each call, on the host |
# | `start` | starting each call on the device |
# | `stream` | samples and results, between host and IPU |
# | `stage 0`, `stage 1`, ... | the passes of this stage, which all others wait for |
# | `ramps` | filling and draining the pipeline |
# | `copies` | activations and gradients, between IPUs |
# | `update` | the weight update, with its all-reduce and the copies of the optimiser's state |

# %%
lesson.explore(programs)

# %% [markdown]
# **Exercise 3** (8 min). Choose each program in the explorer, and name what limits it. Then say for A and C how many
# times as fast they could become **at most**: what if the part that takes the most time took none?

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: limits = {"A": ..., "B": ..., "C": ...}
### STARTER: at_most = {"A": ..., "C": ...}
limits = {"A": "loader", "B": "stage 3", "C": "update"}
at_most = {"A": 64.0 / (0.30 + 16.43), "C": 31.81 / (31.81 - 27.04)}
### END SOLUTION
lesson.check(3, limits, at_most, using=programs)

# %% [markdown] tags=["hint"]
# Begin with *host and device*: does the next call start when the device has ended? If so, go to the execution trace.
# The most that a mend can bring is the time of a call, divided by the time that is left. If a mend can
# remove only a part of what limits a program, you may count the whole or this part: both answers are accepted.

# %% [markdown] tags=["solution"]
# A: a call starts every 64 ms, and the device works for 16.4 of them. The model has this wait between two calls; on
# hardware, it can also show in StreamCopyBegin. B: IPU 3 works 94 % of the time and the others less than half, because
# the 50,304 words are predicted there. C: the update takes 27.34 of 31.81 ms, so C could become 7.1 times as fast
# without it. But the weights have to be updated, and only the copies of AdamW's state can go. They take 27.04 ms, so a
# mend brings 6.7 times at most. In the guide's own example, such copies take more than 58 % of the cycles [1].

# %% [markdown]
# ## Mend them, and compare two reports
#
# **Exercise 4** (8 min). Mend all three:
#
# * `workers_a`: the smallest number of workers, each on a core of its own, with which A is as fast as it can be;
# * `place_b(model)`: where IPUs 1, 2 and 3 begin in B. It has `model.layers[0]` to `model.layers[11]`, and at the end
#   the projection `model.head`. As it is, the IPUs begin at layers 3, 6 and 9. B has to become 1.25
#   times as fast. The score is its sentences per second, and more than 4,400 are possible;
# * `options_c()`: the `poptorch.Options` of C, with accumulation 8 as before. So far, they also have
#   `options.TensorLocations.setOptimizerLocation(poptorch.TensorLocationSettings().useOnChipStorage(False))`.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: workers_a = ...
### STARTER: def place_b(model):
### STARTER:     model.layers[3] = poptorch.BeginBlock(model.layers[3], ipu_id=1)
### STARTER:     ...
### STARTER: def options_c():
### STARTER:     ...
workers_a = 16
def place_b(model):
    model.layers[4] = poptorch.BeginBlock(model.layers[4], ipu_id=1)
    model.layers[8] = poptorch.BeginBlock(model.layers[8], ipu_id=2)
    model.head = poptorch.BeginBlock(model.head, ipu_id=3)
def options_c():
    options = poptorch.Options()
    options.Training.gradientAccumulation(8)
    return options
### END SOLUTION
lesson.check(4, workers_a, place_b, options_c, using=programs)

# %% [markdown] tags=["hint"]
# A: all workers together load 128 photographs in 128 x 2 ms / workers; compare that with the rest of the call. B: how
# many layers take as long as the projection? C: without the line, the state is where PopTorch puts it by default.

# %% [markdown] tags=["solution"]
# A needs 256 ms / 16.73 ms = 15.3, so 16 workers. B's projection takes longer than four layers, so it gets an IPU of
# its own: 4,463 sentences per second, the best of all cuts (`all_cuts.py` in the lesson's folder enumerates them). The
# next best reaches 3,985. The longest stage is now the first one, which has the lookup of the words besides its four
# layers. C's state takes another 180 KiB on the fullest tile, and there is room for it.

# %% [markdown]
# After a change, write a second report and compare them. This is program C, before and after:

# %%
mended = mend_all()
compare_c(programs, mended)
show_mended(programs, mended)
show_roofline(programs, mended)

# %% [markdown]
# Read the comparison from its last line: how much faster, does it still fit, and **what limits it now**? Then check
# that only those rows changed that you wanted to change. Here StreamCopyMid nearly disappeared, OnTileExecute is the
# same to the cycle, and the fullest tile holds 80 % more. The code for the host doubled, because the host now reads and
# writes the state on the tiles.
#
# The mends of A and C reach what you computed in exercise 3. And now you know why the colleague was disappointed:
# twice the accumulation halves the number of updates, so it helps only C, whose update is long.
#
# A **roofline** [5] finds only one of the three. Its slopes show how many operations a second are possible if all that
# limits you is a flow of bytes: that of the host link, or that of a loader. A stands exactly on the slope of its four
# workers. With 16 it moves up nearly to the next, where its IPU is the limit. B and C have no loader, and lie far below
# the peak and the host link: in B, IPUs *wait*, and C moves its bytes over a path that this roofline does not draw.
#
# ## Profile a program of your own
#
# **Exercise 5** (8 min). Write `program(mended)`, which returns `(module, inputs, options, optimiser)`: any network
# whose `forward` returns a loss, the inputs of one micro-batch, the `poptorch.Options`, and an optimiser. Let it be
# slow for one reason. Say in `limit` which, in the words above. With `mended=True`, the function returns the same
# program with one thing changed. The check profiles both: is your statement right, and is the second at least 1.1 times
# as fast? The score is how many times.

# %% tags=["exercise"]
### BEGIN SOLUTION
### STARTER: def program(mended):
### STARTER:     ...
### STARTER: limit = ...
def program(mended):
    layers = nn.Sequential(nn.Flatten(), nn.Linear(3 * 64 * 64, 256), nn.ReLU(), nn.Linear(256, 10))
    network, images, labels = WithLoss(layers), torch.zeros(64, 3, 64, 64), torch.zeros(64, dtype=torch.int64)
    if mended:
        network, images = network.half(), images.half()
    options = poptorch.Options()
    options.Training.gradientAccumulation(16)
    return network, (images, labels), options, poptorch.optim.SGD(network.parameters(), lr=0.1)
limit = "stream"
### END SOLUTION
lesson.check(5, program, limit, using=programs)

# %% [markdown] tags=["hint"]
# Few operations for each number that is sent make a program that is limited by streams; much optimiser state off the
# chip with little accumulation, one limited by its update; uneven stages, one limited by a stage. To look before you
# say, pass what `program(False)` returns to `ipu_course.engine.profile_module`, and its profile to `show.timeline`.

# %% [markdown] tags=["solution"]
# Here every image has 12,288 numbers and meets only three million weights. In half precision, half the bytes are sent.

# %% [markdown]
# ## Compare ideal and achieved scaling
#
# The guide's advice for many replicas is the same: measure the throughput, and then find the parts that take a constant
# time, because they do not shrink when there are more IPUs [1]. If every replica keeps its own micro-batches,
# a perfect call takes as long with eight replicas as with one. So put the profiles side by side, and look for **the
# part that grows**.
#
# **Predict:** C is mended now, and still has accumulation 8. What percentage of the ideal throughput do 8 replicas
# reach?

# %% tags=["prediction"]
efficiency = lesson.predict("percentage of the ideal throughput that 8 replicas reach", ...)

# %%
scaled = scaled_records()
efficiency.reveal(efficiency_percentage(scaled), "modelled")
show_replicas(scaled)

# %% [markdown]
# One part grows from nothing to 7.66 ms, and becomes longer than both passes: the all-reduce of the gradients of 34
# million weights ([lesson 10](10)). The streams grow a little, because IPUs share a link to the host. All other parts
# stay the same.
#
# The remedy follows from the part. An all-reduce is paid once per update, so four times the accumulation costs a
# quarter of it per record; 8 replicas then reach 66 %. (The batch grows, too, as lessons 02 and 10 explain.) For
# program A, the growing part would be the loader. The guide's own procedure (7.2) goes on with text that we could not
# read; this one is the course's.
#
# ## Summary
#
# * `POPLAR_ENGINE_OPTIONS` gets a report from any program. Keep the run short.
# * Ask in this order: does it fit, who waits, for what, which layer?
# * Look at the host first: the execution trace of one call does not show that the next call starts late.
# * A mend brings at most the time of the call divided by what is left without the part.
# * After each change, compare two reports, and see what limits the program now.
# * With more replicas, look for the part that grows.
#
# **Takeaway:** a remedy helps only a program whose bottleneck it removes. Read the profile before you choose one.
#
# ## On real hardware
#
# There, this notebook prints a note in place of modelled figures, and its checks, which need the model, say so. The
# same two ways write `profile.pop`, in a sub-folder for each model, which PopVision shows and the library `libpva`
# reads in Python. A full report of a large model is big: profile one or two runs
# (`autoReport.executionProfileProgramRunCount`). The execution trace is itself a model, corrected with measured cycles;
# each compute set has one duration, even if its runs differ [3]. What the host does is in another tool, the System
# Analyser (`PVTI_OPTIONS='{"enable":"true"}'`). Poplar's own *IPU Model* device is not the IPU Model of this course.
# Without IPUs, profile an offline compilation: it has memory, but no execution. We know the guide's 2.4 and 6.3 by
# their headings only, so the order of questions is the course's own.
#
# ## What transfers
#
# `torch.profiler` writes the same trace format for GPUs, and `busy` reads it after small changes. The questions are
# the same, too: is the device idle, is it moving, is it computing? On a GPU, many kernels overlap, so the sum of a
# row can exceed the step; on an IPU, the phases come one after another (unless you reserve tiles for I/O),
# which makes a profile simple to read.
#
# ## References
#
# 1. Graphcore, *[Memory and Performance Optimisation on the
#    IPU](https://docs.graphcore.ai/projects/memory-performance-optimisation/)*, sections 2.4, 4.4.4, 6.3 and 7.2.
# 2. IPU hands-on training workshop (2022), day 03: execution trace of ResNet-101 on two Mk2 IPUs, accumulation 3.
# 3. Graphcore, *[PopVision Graph Analyser user guide](https://docs.graphcore.ai/projects/graph-analyser-userguide/)*.
# 4. *[Perfetto](https://ui.perfetto.dev)*, a viewer for traces in Chromium's trace event format.
# 5. Williams, Waterman, Patterson, *Roofline: an insightful visual performance model*, Communications of the ACM, 2009.
#
# **Next:** A profile tells you that the IPUs wait for the host, but not what the host is doing: follow the samples on
# their way to the IPU, and the program on its way through the compiler.
