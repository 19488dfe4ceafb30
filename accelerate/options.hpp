// SPDX-License-Identifier: Apache-2.0
// What an Accelerator can be told. Everything has a default that fits most programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/project.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/env/precision.hpp"
#include "accelerate/gradient/bucket_plan.hpp"
#include "accelerate/gradient/bucket_reducer.hpp"
#include "accelerate/gradient/sync_schedule.hpp"
#include "accelerate/precision/grad_scaler.hpp"
#include "accelerate/precision/policy.hpp"
#include "accelerate/tracking/trackers.hpp"

namespace accelerate {

/// What prepared models compute in: no, bf16 or fp16. Parameters, optimizers and outputs stay in float32.
using Precision = env::Precision;

/// Ranks and devices in one word, with Hugging Face Accelerate's names; multi_gpu is any accelerator.
enum class DistributedType { no, multi_cpu, multi_gpu };

/// What a last window of m < gradient_accumulation_steps = k micro-batches is divided by: true_length (m), so that
/// every sample counts the same, or full_length (k), as Hugging Face Accelerate does, so that its samples count less.
using ShortWindow = gradient::ShortWindow;

using ProjectConfiguration = checkpoint::ProjectConfiguration;

struct AccumulationOptions {
  /// The last batch of an epoch ends its window. False: windows go on across epochs.
  bool sync_with_dataloader = true;
  /// Reduce the gradients after every micro-batch; optimizers still step at the ends of windows.
  bool sync_each_batch = false;
  ShortWindow short_window = ShortWindow::true_length;
};

/// A block of accelerator.autocast().
struct AutocastOptions {
  /// False: operations take their inputs' dtypes.
  bool enabled = true;
  /// Casts of weights are kept until the outermost block ends.
  bool cache_enabled = true;
};

/// How far an optimizer step moves a prepared schedule.
enum class SchedulerUnit {
  optimizer_steps,  ///< by one: schedules count optimizer steps of the whole job
  processes,        ///< by num_processes, as Hugging Face Accelerate does, for schedules written for one process
};

/// An unset std::optional means: what the launcher or the environment says (variable in the comment), else the config
/// file named by ACCELERATE_CONFIG_FILE, else the default in the comment. What is given here wins over all of them.
struct AcceleratorOptions {
  /// Stay on the CPU although there is a GPU. ACCELERATE_USE_CPU; default false.
  std::optional<bool> cpu{};
  /// What forward and backward of prepared models compute in, by autocast. fp16 scales the loss.
  /// ACCELERATE_MIXED_PRECISION; default no.
  std::optional<Precision> mixed_precision{};
  /// Micro-batches summed into one optimizer step, at least 1. ACCELERATE_GRADIENT_ACCUMULATION_STEPS; default 1.
  std::optional<int64_t> gradient_accumulation_steps{};
  /// CPU backend: "mpi" or "gloo". ACCELERATE_BACKEND; default mpi where the ranks were started with MPI, else gloo.
  std::optional<std::string> backend{};
  /// Longest wait for a peer before a collective fails and names it. ACCELERATE_TIMEOUT in seconds; default 600 s.
  std::optional<std::chrono::seconds> timeout{};
  /// Compare every collective across the ranks before it runs, and the order of a loader's pass when it begins: all
  /// ranks must begin it. ACCELERATE_DEBUG_MODE; default false.
  std::optional<bool> debug{};
  /// Exactly this device: "cpu", "cuda:1", "cuda" (by local rank), or another of LibTorch's. Ranks that are threads
  /// compute on the CPU unless it names an accelerator. ACCELERATE_TORCH_DEVICE; default the accelerator, else cpu.
  std::optional<std::string> device{};
  /// LibTorch's threads in this rank. OMP_NUM_THREADS; default the machine's physical cores (and CPU quota) shared out.
  std::optional<int64_t> threads_per_rank{};
  /// More ranks than GPUs on a machine share them in turn. ACCELERATE_ALLOW_SHARED_GPUS; default false: an error.
  std::optional<bool> allow_shared_gpus{};

  AccumulationOptions accumulation{};
  /// Dtypes that mixed_precision has no name for, in its place: precision::pure_bf16() stores parameters, their
  /// gradients and floating buffers in bfloat16, and steps on float32 master weights.
  std::optional<precision::Policy> precision_policy{};
  /// How the loss scale of fp16 moves.
  precision::GradScalerOptions grad_scaler{};
  /// A backward() whose loss is NaN is an error that says which and on which rank. The host waits for the device to
  /// know.
  bool stop_at_nan_loss = false;
  gradient::BucketOptions buckets{};
  /// How buckets of gradients are reduced: gradient::fp16_compress_hook(), bf16_compress_hook(), power_sgd_hook(),
  /// batched_power_sgd_hook(), a wrapper of 16 bits round one of these, or one's own by gradient::comm_hook() or a
  /// BucketReducer. Default: an all-reduce of what the gradients are.
  gradient::CommHook comm_hook{};
  /// Rank 0's buffers go to all ranks at each synchronised training forward.
  bool broadcast_buffers = true;
  /// Every parameter is used in every backward: saves looking.
  bool static_graph = false;
  /// If true, a prepared SGD, Adam, AdamW, Adagrad or RMSprop steps by a fused kernel, whose results differ from its
  /// own step() in the last bits. If false, it steps by its own step(), with results that are bit-equal to LibTorch's.
  bool fused_optimizer = true;
  /// Every rank runs the same number of batches; the last are filled from the front of the data.
  bool even_batches = true;
  /// A loader's batch_size is that of all ranks together, a multiple of their number: each computes its part of every
  /// batch. Off: it is one rank's, and a step takes as many batches as there are ranks.
  bool split_batches = false;
  /// Rank 0 reads a loader's batches for all ranks and sends each its own: for data that only one rank can read, or
  /// that are dear to read. Unset: for streams (data::StreamLoader), whose every rank would otherwise read all.
  std::optional<bool> dispatch_batches{};
  /// prepare() moves modules, and loaders their batches, to the device.
  bool device_placement = true;
  /// False: a prepared schedule moves at every call of step().
  bool step_scheduler_with_optimizer = true;
  SchedulerUnit scheduler_unit = SchedulerUnit::optimizer_steps;
  /// After every so many steps of a prepared optimizer its models are compared across the ranks, bit for bit, as by
  /// check_synchronized(): one pass over the parameters and 16 bytes on the wire. Not within local_sgd() and
  /// join_uneven_inputs(). 0: never.
  int64_t check_synchronized_every = 0;
  /// Where save_state() without a folder puts its checkpoints, and how many of them stay.
  checkpoint::ProjectConfiguration project{};
  /// Where init_trackers() and log() keep a run's numbers: "csv", "jsonl", "tensorboard", "all" of these, or objects of
  /// one's own, std::shared_ptr of a class that derives from tracking::Tracker.
  std::vector<tracking::LogWith> log_with{};
  /// Folder of the trackers that write files; a run has one in it, of its project's name. Unset: project.project_dir.
  std::optional<std::string> logging_dir{};
  /// Makes a process group for one process too; for tests of a backend on one device.
  bool force_process_group = false;
};

}  // namespace accelerate
