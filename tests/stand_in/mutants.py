#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Removes the library's synchronization with asynchronous devices, one line at a time, and prints which test fails.

    tests/stand_in/mutants.py FOLDER [NUMBER ...]    works in a copy of the tree in FOLDER, which is kept;
                                                     docs/design/mutants.md has the table
    tests/stand_in/mutants.py --check                prints lines that are missing in the tree, and rows of
                                                     the table without a mutant, file or test

All selected mutants are compiled into one program, so it is built once; a variable selects the mutant of a run. A
mutant in a header recompiles every test.
"""
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

TOP = Path(__file__).resolve().parents[2]
SECONDS = 200  # a run that takes longer hangs


def out(statement):
    return statement, f"if (!MUTANT) {statement}"


def instead(old, new):
    return old, f"(MUTANT ? ({new}) : ({old}))"


def operations_wait(operation):
    return ("core/group_core.cpp", "work.wait();",
            f"if (!(MUTANT && signature.operation == Operation::{operation})) work.wait();")


def out_after(context, statement):
    return context + statement, f"{context}if (!MUTANT) {statement}"


def unwaited(operation, arguments):
    call = f"group.{operation}({arguments});"
    return call, f"{{ if (MUTANT) static_cast<void>(group.{operation}_async({arguments})); else {call} }}"


UPLOAD = "accelerate/device/upload.cpp"
DOWNLOAD = "accelerate/device/download.cpp"
POWER_SGD, SYNC_BATCH_NORM = "accelerate/gradient/hooks/power_sgd.cpp", "accelerate/nn/sync_batch_norm.cpp"
GRAPH, GRAPHED = "accelerate/device/graph.cpp", "accelerate/prepared/graphed_step.cpp"
TREE = "accelerate/tree/collectives.cpp"
UNIT, PARTS = "accelerate/sharding/sharded_unit.cpp", "accelerate/sharding/part_copies.cpp"
FULLY_SHARDED, WHOLE = "accelerate/sharding/fully_sharded_parameters.cpp", "accelerate/sharding/whole_unit.cpp"

# Description of the removed guarantee; the file; the code and its replacement; the test file that must detect it.
COMM, GRADIENT = "accelerate/comm/", "accelerate/gradient/"
OF_OPERATIONS = [(f"`{name}`: the stream's wait", COMM + file, (old, new), "groups")
                 for name in ("all_reduce", "reduce", "reduce_scatter", "broadcast", "all_gather", "gather", "scatter",
                              "all_to_all", "send", "recv") for file, old, new in [operations_wait(name)]]
MUTANTS = OF_OPERATIONS + [
    ("`Pending::wait()`", COMM + "group.cpp", instead("operation_ && !operation_->finished", "false"), "groups"),
    ("`Pending::wait(timeout)`", COMM + "group.cpp", out("if (operation_) operation_->wait(timeout);"), "groups"),
    ("a non-contiguous result is copied back only after the wait", COMM + "core/group_core.cpp",
     ("  if (work) group->wait(", "  if (MUTANT && std::exchange(copy_back, false)) target.copy_(dense);\n"
      "  if (work) group->wait("), "groups"),
    ("a mean is divided only after the wait", COMM + "core/group_core.cpp",
     ("  if (work) group->wait(", "  if (MUTANT && divide_by > 1) target.div_(std::exchange(divide_by, 1));\n"
      "  if (work) group->wait("), "groups"),
    ("a pending operation blocks the stream, not the host", COMM + "core/group_core.cpp",
     instead("!wire.is_cpu()", "false"), "groups"),
    ("`all_gather` blocks the stream, not the host", COMM + "operations/data_movement.cpp",
     ("mine, !tensor.is_cpu()", "mine, !tensor.is_cpu() && !MUTANT"), "groups"),
    ("`gather`, `scatter`, `all_to_all` block the stream, not the host", COMM + "operations/data_movement.cpp",
     ("mine, !device.is_cpu()", "mine, !device.is_cpu() && !MUTANT"), "groups"),
    ("a pending operation on a device has a `Work`", COMM + "operations/reductions.cpp",
     instead("execution == Execution::eager || !tensor.is_cpu()", "execution == Execution::eager"), "groups"),
    ("an operation checks for failed earlier operations", COMM + "core/group_core.cpp", out("connection.check();"),
     "failure"),
    ("`check()` includes the device's connection", COMM + "core/group_core.cpp",
     ("if (on_device) on_device->check();", "if (on_device && !MUTANT) on_device->check();"), "failure"),
    ("a broken group aborts its operations on the device", COMM + "core/group_core.cpp",
     ("if (on_device) on_device->abort_operations();\n}", "if (on_device && !MUTANT) on_device->abort_operations();\n}"), "failure"),
    ("an unwinding exception aborts operations on the device", COMM + "core/group_core.cpp",
     ("if (on_device && std::uncaught_exceptions() > 0)", "if (on_device && !MUTANT && std::uncaught_exceptions() > 0)"),
     "failure"),
    ("the gradient reducer's wait for its buckets", GRADIENT + "bucket_reducer.cpp",
     out("std::exchange(under_way_[static_cast<size_t>(bucket.index)], {}).wait();"), "training"),
    ("a bucket is reduced before backward ends", GRADIENT + "gradient_reducer_core.cpp",
     instead("early_ && join_coordinator == nullptr", "false"), "host_sync"),
    ("an optimizer step checks for failed reductions", GRADIENT + "gradient_reducer_state.cpp",
     ("if (group.device()) group.check(", "if (group.device() && !MUTANT) group.check("), "failure"),
    ("an optimizer step checks the job's group for failures", "accelerate/prepared/optimizer.cpp",
     out('accelerator_state_->group.check("optimizer.step");'), "failure"),
    ("the host waits for the usage counts before reading them", GRADIENT + "unused_parameters.cpp",
     ("counts.to(at::kCPU, at::kFloat)", "counts.to(at::kCPU, at::kFloat, /*non_blocking=*/MUTANT)"), "uneven"),
    ("the host does not wait to write the usage counts", GRADIENT + "unused_parameters.cpp",
     ("counts.copy_(mine, /*non_blocking=*/true)", "counts.copy_(mine, /*non_blocking=*/!MUTANT)"), "uneven"),
    ("the host does not wait for usage counts with a static graph", GRADIENT + "unused_parameters.cpp",
     instead("!options.static_graph", "!options.static_graph || !buckets.back().flat.cpu().defined()"), "uneven"),
    ("the wait for packed buffers", GRADIENT + "coalesced.cpp",
     ("group.broadcast(pack.bytes, root);", "if (MUTANT) static_cast<void>(group.broadcast_async(pack.bytes, root)); "
      "else group.broadcast(pack.bytes, root);"), "training"),
    ("the wait for a parameter that is broadcast alone", GRADIENT + "coalesced.cpp",
     ("group.broadcast(piece.front(), root);", "if (MUTANT) static_cast<void>(group.broadcast_async("
      "piece.front(), root)); else group.broadcast(piece.front(), root);"), "placement"),
    ("the wait for averaged parameters (local SGD)", GRADIENT + "coalesced.cpp",
     ("group.all_reduce(sum, comm::ReduceOp::mean);", "if (MUTANT) { static_cast<void>(group.all_reduce_async(sum)); "
      "sum.div_(group.size()); } else group.all_reduce(sum, comm::ReduceOp::mean);"), "features"),
    ("device memory is not read for a write stamp", GRADIENT + "write_stamp.cpp",
     instead("parameter.is_cpu()", "true"), "features"),
    ("norms are moved to the first gradient's device", GRADIENT + "clip.cpp", instead("norm.to(device, !device.is_cpu())", "norm"),
     "placement"),
    ("the clipping factor is moved to each gradient's device", GRADIENT + "clip.cpp",
     instead("factor.to(device, group.front().scalar_type(), !device.is_cpu())", "factor"), "placement"),
    ("the selected device becomes the current device", "accelerate/device/device_selection.cpp",
     ("if (!device.is_cpu()) c10", "if (!device.is_cpu() && !MUTANT) c10"), "placement"),
    ("the current device is set at start-up", "accelerate/job/start.cpp", out("device::set_current_device(device);"), "placement"),
    ("the current device is set for a group with a device", "accelerate/job/start.cpp", out("device::set_current_device(start.device);"), "placement"),
    ("the device generator is synchronized over all ranks", "accelerate/job/random_states.cpp",
     ("if (!device_of_rank.is_cpu())", "if (!device_of_rank.is_cpu() && !MUTANT)"), "placement"),
    ("uploads of unpinned batches do not block the host", "accelerate/prepared/loader.hpp",
     ("/*non_blocking=*/true", "/*non_blocking=*/!MUTANT"), "loader"),
    ("fused kernels are used if the device supports them", "accelerate/optim/sharded_step.cpp",
     instead("dispatcher.hasBackendFallbackForDispatchKey(key)", "false"), "host_sync"),
    ("optimizer state is moved to its parameter's device", "accelerate/optim/sharded_step.cpp",
     instead("state.device() == parameter.device()", "true"), "placement"),
    ("the host does not read the device's skip flag", "accelerate/optim/sharded_step.cpp",
     instead("call.device.is_cpu() && is_set(scale.skip)", "is_set(scale.skip)"), "fused_step"),
    ("RMSprop: a skipped step is undone", "accelerate/optim/rmsprop_kernels.cpp",
     ("if (!scale.skip) return;", "if (MUTANT || !scale.skip) return;"), "fused_step"),
    ("skipped steps are counted on the device", "accelerate/optim/sharded_step.hpp", out("cancelled_.correct(call);"),
     "fused_step"),
    ("the step count is written on the device", "accelerate/optim/kernel_calls.hpp",
     ("if (!recorded && call.device.is_cpu()) {", "if (MUTANT || (!recorded && call.device.is_cpu())) {"), "fused_step"),
    ("an out-of-memory failure becomes an `Error`", "accelerate/device/out_of_memory_error.cpp",
     ("  std::string message =", "  if (MUTANT) throw;\n  std::string message ="), "failure"),
    ("stand-in: a collective waits for the compute stream", "tests/stand_in/backend.cpp", out("ready.block(side_);"),
     "groups"),
    ("stand-in: `Work::wait()` makes the current stream wait", "tests/stand_in/backend.cpp",
     out("done_.block(current_stream(side_.device_index()));"), "backend"),
    ("stand-in: a collective's tensors are recorded on its stream", "tests/stand_in/backend.cpp",
     out("tensor.record_stream(side_);"), "groups"),
    ("an upload waits for earlier uses of its memory", UPLOAD, out("memory_free_.block(stream_);"), "loader"),
    ("the batch's stream waits for its upload", UPLOAD, out("staging->copied.block(current);"), "loader"),
    ("the stream that owns the memory waits for the upload", UPLOAD, out("staging->copied.block(home_);"), "loader"),
    ("the same wait for an upload that is never taken", UPLOAD, out("staging_->copied.block(home_);"), "loader"),
    ("memory is recorded on streams that did not begin the upload", UPLOAD,
     out("if (there.device() == device_) there.record_stream(current);"), "loader"),
    ("an upload waits for data computed on the device", UPLOAD, out("made.block(current);"), "loader"),
    ("pinned memory is not overwritten before its copy is complete", UPLOAD,
     ("!staging->copied.query()) continue", "(!MUTANT && !staging->copied.query())) continue"), "loader"),
    ("a pinned batch is kept alive until its copy is complete", UPLOAD, out("kept.push_back(tensor);"), "loader"),
    ("pinned memory is not freed before its copy is complete", UPLOAD,
     out("if (!staging->copied.query()) staging->copied.synchronize();"), "loader"),
    ("uploads do not block the host", UPLOAD,
     ("staged[i], /*non_blocking=*/true", "staged[i], /*non_blocking=*/!MUTANT"), "loader"),
    ("copies outside the upload do not block the host", UPLOAD,
     ("/*non_blocking=*/!tensor", "/*non_blocking=*/!MUTANT && !tensor"), "loader"),
    ("uploads read from pinned memory", UPLOAD, ("pinned_memory(true)", "pinned_memory(!MUTANT)"), "loader"),
    ("the next upload begins before this batch's step", "accelerate/prepared/loader.hpp",
     ("if (lane) begin_next();", "if (lane && !MUTANT) begin_next();"), "loader"),
    ("after out of memory for two batches, one is used", "accelerate/prepared/loader.hpp",
     ("catch (const c10::OutOfMemoryError&) {", "catch (const c10::OutOfMemoryError&) { if (MUTANT) throw;"), "loader"),
    ("loss scaling: the flag is copied without blocking the host", "accelerate/precision/async_scalar_read.cpp",
     ("/*non_blocking=*/true", "/*non_blocking=*/!MUTANT"), "loss_scaling"),
    ("the flag is read only after its copy is complete", "accelerate/precision/async_scalar_read.cpp", instead("copied_->query()", "true"),
     "loss_scaling"),
    ("a schedule waits for the flag of the previous step", "accelerate/prepared/loss_scaling.cpp",
     instead("!deferred_.empty()", "false"), "loss_scaling"),
    ("the flag is passed to the fused kernel on the device", "accelerate/prepared/optimizer.cpp",
     instead("!skip.is_cpu()", "false"), "loss_scaling"),
    ("a download waits for earlier writes to its sources", DOWNLOAD, out("lane.ready.block(lane.stream);"), "checkpoint"),
    ("later writes to the sources wait for the download", DOWNLOAD,
     out("lane.copied.block(current_stream(lane.device));"), "checkpoint"),
    ("sources are recorded on the download stream", DOWNLOAD, out("source.record_stream(lane.stream);"), "checkpoint"),
    ("the host waits for a download before reading it", DOWNLOAD, ("lane.copied.synchronize();", "if (!MUTANT) lane.copied.synchronize();"),
     "checkpoint"),
    ("the download itself does not block the host", DOWNLOAD, ("/*non_blocking=*/true", "/*non_blocking=*/!MUTANT"), "checkpoint"),
    ("a synchronous save copies on the current stream", "accelerate/checkpoint/save.cpp",
     instead("making.part.accelerator == c10::DeviceType::CPU", "true"), "checkpoint"),
    ("the memory of the old optimizer state is used for the new one", "accelerate/optim/optimizer_load.cpp",
     ("if (!field.defined()) field", "if (MUTANT || !field.defined()) field"), "checkpoint"),
    ("a capture begins after the caller stream's earlier work", GRAPH, out("follow(own, callers);"), "graph"),
    ("the caller stream's later work waits for the capture", GRAPH, out("follow(callers, own);"), "graph"),
    ("a failed capture is ended", GRAPH, ("try {\n        graph.end();", "try {\n        if (!MUTANT) graph.end();"), "graph"),
    ("no capture before the warm-up steps", "accelerate/prepared/graph_cache.cpp",
     instead("++kept.plain <= options_.warmup_steps", "false"), "graph"),
    ("one graph per input shape", GRAPHED, ("described(inputs)", "(MUTANT ? std::string() : described(inputs))"), "graph"),
    ("the captured step's configuration is compared", GRAPHED, ("made_of());", "MUTANT ? 0 : made_of());"), "graph"),
    ("inputs are copied before the first run of a capture", GRAPHED, out("copy_input(recorded.inputs.back(), input);"), "graph"),
    ("inputs are copied before each replay", GRAPHED, out("copy_input(recorded.inputs[i], inputs[i]);"), "graph"),
    ("results are copied out of the graph's memory", GRAPHED, ("output.clone()", "(MUTANT ? output : output.clone())"), "graph"),
    ("hooks are renewed on the capturing stream", GRAPHED,
     ("gradient_reducer->renew_hooks();\n        },", "if (!MUTANT) gradient_reducer->renew_hooks();\n        },"), "graph"),
    ("cached casts are dropped before a capture", GRAPHED,
     ("precision::drop_cached_casts();\n  if", "if (!MUTANT) precision::drop_cached_casts();\n  if"), "graph"),
    ("cached casts are dropped after each replay", GRAPHED,
     ("precision::drop_cached_casts();  // an", "if (!MUTANT) precision::drop_cached_casts();  // an"), "graph"),
    ("pending fp16 flags are read before a capture", GRAPHED,
     ("if (accelerator_state_->scaling) {  // flags", "if (!MUTANT && accelerator_state_->scaling) {  // flags"), "graph"),
    ("either all ranks capture or none", GRAPHED,
     ("size() > 1) {\n    const auto all", "size() > 1 && !MUTANT) {\n    const auto all"), "graph"),
    ("deferred schedule steps run before a replay", GRAPHED,
     ("accelerator_state_->scaling->run_deferred_schedules();  // a",
      "if (!MUTANT) accelerator_state_->scaling->run_deferred_schedules();  // a"), "graph"),
    ("a replay increments each parameter's step count", GRAPHED, out("each.numbers.count(1);"), "graph"),
    ("master weights follow weights loaded between replays", GRAPHED,
     out("std::ignore = shared.masters.of(group.params());"), "graph"),
    ("learning rates and counts are uploaded before a replay", GRAPHED, out("each.numbers.upload_to_device();"), "graph"),
    ("the skip flags of a replay are read", GRAPHED, out("each.optimizer->scaled().replayed(each.flags);"), "graph"),
    ("captured kernels read the learning rate on the device", "accelerate/optim/sharded_step.cpp",
     ("if (capture_) read_from_device(call);", "if (capture_ && !MUTANT) read_from_device(call);"), "graph"),
    ("RMSprop's operators read the learning rate on the device", "accelerate/optim/rmsprop_kernels.cpp", instead("rate.defined()", "false"), "graph"),
    ("step counts are not written during a capture", "accelerate/optim/kernel_calls.hpp",
     instead("call.rate.defined()", "false"), "graph"),
    ("thread ranks wait for each other while a foreign loader draws its order", "accelerate/prepared/loader_rng.cpp",
     instead('group.backend().ends_with("threads")', "false"), "loader"),
    ("PowerSGD: the wait for uncompressed gradients", POWER_SGD, out("factors.rest_under_way.wait();"), "features"),
    ("PowerSGD: the wait for the left factors", POWER_SGD, out("factors.p_under_way.wait();"), "features"),
    ("PowerSGD: the wait for the right factors", POWER_SGD,
     ("send(factors.all_q).wait();", "if (MUTANT) static_cast<void>(send(factors.all_q)); else send(factors.all_q).wait();"),
     "features"),
    ("SyncBatchNorm: the wait for the moments of all ranks", SYNC_BATCH_NORM,
     ("group_.all_gather_async(all, mine).wait();",
      "if (MUTANT) static_cast<void>(group_.all_gather_async(all, mine)); else group_.all_gather_async(all, mine).wait();"), "nn"),
    ("SyncBatchNorm: the wait for the sums in backward", SYNC_BATCH_NORM,
     ("batch->group.all_reduce(part.sums);",
      "if (MUTANT) static_cast<void>(batch->group.all_reduce_async(part.sums)); else batch->group.all_reduce(part.sums);"), "nn"),
    ("function hook: the wait for the usage counts", GRADIENT + "hooks/function.cpp",
     ("group_.all_reduce(bucket.counts);", "{ if (MUTANT) static_cast<void>(group_.all_reduce_async(bucket.counts)); "
      "else group_.all_reduce(bucket.counts); }"), "uneven"),
    ("a replay counts as a step of the job", GRAPHED, out("accelerator_state_->steps += recorded.steps;"), "graph"),
    ("a failed capture is rolled back", GRAPHED, out("if (!reason.empty()) take_back(*recorded);"), "graph"),
    ("a parameter's first step is not captured", "accelerate/optim/fused_sgd.cpp",
     ("if (first && capturing())", "if (!MUTANT && first && capturing())"), "graph"),
    ("a requested flag is available when the wait returns", "accelerate/precision/async_scalar_read.cpp",
     out("if (!arrived()) copied_->synchronize();"), "loss_scaling"),
    ("pinned inputs may be overwritten after a replay", GRAPHED,
     ("/*non_blocking=*/!input.is_pinned()", "/*non_blocking=*/MUTANT || !input.is_pinned()"), "graph"),
    ("the user's `gather`: the wait", TREE,
     ("group.all_gather(tensor.detach())",
      "(MUTANT ? [&] { auto sizes = tensor.sizes().vec(); sizes.at(0) *= group.size(); "
      "const auto rows = at::empty(sizes, tensor.options()); "
      "static_cast<void>(group.all_gather_async(rows, tensor.detach())); return rows; }() "
      ": group.all_gather(tensor.detach()))"), "features"),
    ("the user's `reduce`: the wait", TREE,
     ("if (group.size() > 1) group.all_reduce(result, op);",
      "if (MUTANT && group.size() > 1) { static_cast<void>(group.all_reduce_async(result, op)); } "
      "else if (group.size() > 1) { group.all_reduce(result, op); }"), "features"),
    ("the user's `broadcast`: the wait", TREE, unwaited("broadcast", "tensor.detach(), root"), "features"),
    ("broadcast of one rank's tensor: the wait", TREE, unwaited("broadcast", "sent, root"), "features"),
    ("fp16 flags of all ranks: the wait", "accelerate/precision/grad_scaler.cpp", unwaited("all_reduce", "sum"),
     "loss_scaling"),
    ("captured scalars are outside of the graph's memory", "accelerate/optim/sharded_step.cpp",
     instead("call.rate = found->memory.select(0, found->taken++)", "call.rate = at::empty({}, found->memory.options())"),
     "graph"),
    ("sharding: the wait for a gather", UNIT, out("std::exchange(gathering_, {}).wait();"), "sharding"),
    ("sharding: the wait for a reduction before the sum over replicas", UNIT,
     out_after("comm::Group& replicas) {\n  ", "std::exchange(reducing_, {}).wait();"), "sharding_offload"),
    ("offload: the wait for a gather", PARTS, out("gather.pending.wait();"), "sharding_offload"),
    ("offload: a gather waits for earlier uses of its memory", PARTS, out("event_on(current).block(up_);"),
     "sharding_offload"),
    ("offload: a download waits for its source", PARTS, out("event_on(current).block(down_);"), "sharding_offload"),
    ("offload: the source of a download is freed after it", PARTS, out("downloads_.front().copied.block(current);"),
     "sharding_offload"),
    ("offload: the host waits for downloads", PARTS, out("event_on(down_).synchronize();"), "sharding_offload"),
    ("offload: the host waits for uploads", PARTS, out("event_on(up_).block(down_);"), "sharding_offload"),
    ("offload: an upload does not block the host", PARTS,
     ("values.copy_(part, /*non_blocking=*/true)", "values.copy_(part, /*non_blocking=*/!MUTANT)"), "sharding_offload"),
    ("offload: a download does not block the host", PARTS,
     ("target.copy_(values, /*non_blocking=*/true)", "target.copy_(values, /*non_blocking=*/!MUTANT)"),
     "sharding_offload"),
    ("offload: gradients are added without blocking the host", PARTS,
     ("values.copy_(target, /*non_blocking=*/true)", "values.copy_(target, /*non_blocking=*/!MUTANT)"),
     "sharding_offload"),
    ("offload: parts on the host are pinned", PARTS, ("pinned_memory(true)", "pinned_memory(!MUTANT)"),
     "sharding_offload"),
    ("offload: gradients on the host are pinned", UNIT, ("pinned_memory(true)", "pinned_memory(!MUTANT)"),
     "sharding_offload"),
    ("offload: the host waits before it reads or writes parts", FULLY_SHARDED,
     out_after("core_->free_all();  // keeps new values that operators wrote\n  ", "core_->finish_copies();"),
     "sharding_offload"),
    ("offload: the host waits before it zeroes gradients", FULLY_SHARDED,
     ("core_->finish_copies();\n    for (const UnitMember&", "if (!MUTANT) core_->finish_copies();\n    for (const UnitMember&"),
     "sharding_offload"),
    ("offload: the host waits before it scales gradients", FULLY_SHARDED,
     ("core_->finish_copies();\n  const at::NoGradGuard no_grad;\n  for (const auto& unit : core_->units) unit->scale",
      "if (!MUTANT) core_->finish_copies();\n  const at::NoGradGuard no_grad;\n"
      "  for (const auto& unit : core_->units) unit->scale"), "sharding_offload"),
    ("offload: the host waits before averages are swapped out", "accelerate/optim/ema.cpp",
     out_after("if (before_restore_) ", "before_restore_();"), "sharding_offload"),
    ("offload: the host waits before the parts are freed", UNIT, ("if (copies_) copies_->finish();", "if (copies_ && !MUTANT) copies_->finish();"),
     "sharding_offload"),
    ("sharding: the wait for a reduction", UNIT,
     out_after("void ShardedUnit::finish_reduction() {\n  ", "std::exchange(reducing_, {}).wait();"), "sharding"),
    ("sharding: the wait for parts that are exchanged after a load", UNIT, out("exchange.wait();"), "sharding"),
    ("sharding: the wait for whole parameters after a step", WHOLE,
     ("[&] { pending_.wait(); }", "[&] { if (!MUTANT) pending_.wait(); }"), "sharding"),
    ("sharding: the stream of a step waits, although another stream waited first", WHOLE,
     out("arrived_->block(*sent_stream_);"), "sharding"),
    ("sharding: another stream waits for whole parameters", WHOLE, out("arrived_->block(stream);"), "sharding"),
    ("offload: the wait for the upload of a single rank", PARTS, out("gather.started->block(current);"),
     "sharding_offload"),
    ("offload: the host waits before gradients are clipped", FULLY_SHARDED,
     ("core_->finish_copies();\n  std::vector<at::Tensor> list;",
      "if (!MUTANT) core_->finish_copies();\n  std::vector<at::Tensor> list;"), "sharding_offload"),
    ("the wait for the norm of all parts", GRADIENT + "clip.cpp", unwaited("all_reduce", "sum"), "sharding"),
]


# Kinds of failures, by text in the output; the last one is the fallback.
WAYS = (("race", r"(?s)ERROR: CHECK\( detect_races((?!ERROR:).)*? pace: no delay"),
        ("wait", r"ERROR: CHECK\( \S*waits"),
        ("numbers", r"ERROR: CHECK\( at::(equal|allclose)"),
        ("error", r"THREW|threw|did NOT throw"),
        ("check", r"ERROR: (CHECK|REQUIRE)"))


# In each file, because the programs that share the library link without main.cpp of the stand-in. Several files may be
# compiled as one.
SELECTION = """#ifndef MUTANT_IS
#define MUTANT_IS
#include <cstdlib>
inline bool mutant_is(int number) {
  static const char* const selected = std::getenv("MUTANT");
  return selected != nullptr && std::atoi(selected) == number;
}
#endif
"""


def apply(folder, numbers):
    touched = set()
    for number in numbers:
        what, name, (old, new), _ = MUTANTS[number - 1]
        path = folder / name
        text = path.read_text()
        if text.count(old) != 1:
            sys.exit(f"mutants.py: {number}, {what}: {name} contains {text.count(old)} times: {old}")
        path.write_text(text.replace(old, new.replace("MUTANT", f"::mutant_is({number})")))
        touched.add(path)
    for path in touched:
        path.write_text(SELECTION + path.read_text())


def copy_and_build(folder, numbers):
    shutil.copytree(TOP, folder, ignore=shutil.ignore_patterns("build", "build-*", ".git"), dirs_exist_ok=True)
    apply(folder, numbers)
    subprocess.run(["cmake", "--preset", "release"], cwd=folder, check=True, stdout=subprocess.DEVNULL)
    subprocess.run(["cmake", "--build", "build", "-j1", "--target", "stand_in_tests"], cwd=folder, check=True)


def detected_by(folder, number, test):
    """The first test that fails and the kinds of failures, as two cells of the table; None if no test fails."""
    command = [folder / "build/bin/stand_in_tests", "--no-colors", f"--source-file=*stand_in/{test}_test.cpp"]
    try:
        run = subprocess.run(command, cwd=folder, text=True, timeout=SECONDS, capture_output=True,
                             env={**os.environ, "MUTANT": str(number)})
        output, code = run.stdout, run.returncode
    except subprocess.TimeoutExpired as error:
        output, code = (error.stdout or b"").decode(), "hang"
    ways = []
    for way, pattern in WAYS:
        if re.search(pattern, output) and not (way == "check" and ways):
            ways.append(way)
    if code == "hang":
        ways.append("hang")
    elif code < 0 or "CRASHED" in output:
        ways.append("crash")
    if code == 0:
        return None
    cases = re.findall(r"^TEST CASE:  (.*)$", output, re.M)
    return f"{test}: `{cases[0] if cases else '?'}` | {', '.join(ways)}"


def check():
    """The mutants run seldom and by hand, so every run of the tests checks that the table matches the tree."""
    wrong = [f"{number}, {what}: {name} contains {count} times: {old}"
             for number, (what, name, (old, _), _) in enumerate(MUTANTS, 1)
             if (count := (TOP / name).read_text().count(old)) != 1]
    rows = re.findall(r"^\| (\d+) \| (.*?) \| `(.*?)` \| (\w+): `(.*?)` \|", (TOP / "docs/design/mutants.md").read_text(), re.M)
    for number, what, name, test, case in rows:
        at = f"mutants.md, row {number}, {what}:"
        if int(number) > len(MUTANTS) or MUTANTS[int(number) - 1][0] != what:
            wrong.append(f"{at} matches no mutant")
        elif not MUTANTS[int(number) - 1][1].endswith(name):
            wrong.append(f"{at} is in {MUTANTS[int(number) - 1][1]}, not in {name}")
        if f'TEST_CASE("{case.removesuffix("...").rstrip()}' not in (TOP / f"tests/stand_in/{test}_test.cpp").read_text():
            wrong.append(f"{at} {test}_test.cpp has no such test: {case}")
    missing = set(range(1, len(MUTANTS) + 1)) - {int(number) for number, *_ in rows}
    wrong += [f"mutants.md has no row for {number}, {MUTANTS[number - 1][0]}" for number in sorted(missing)]
    sys.exit("\n".join(wrong) or None)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    if sys.argv[1] == "--check":
        check()
    folder = Path(sys.argv[1]).resolve()
    numbers = [int(number) for number in sys.argv[2:]] or range(1, len(MUTANTS) + 1)
    copy_and_build(folder, numbers)
    for number in numbers:
        what, name, _, test = MUTANTS[number - 1]
        found = detected_by(folder, number, test) or "**not detected** | -"
        print(f"| {number} | {what} | `{name}` | {found} |", flush=True)


main()
