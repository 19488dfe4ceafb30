// SPDX-License-Identifier: Apache-2.0
// Options of an Accelerator. Every option has a default that suits most programs.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "accelerate/checkpoint/project.hpp"
#include "accelerate/comm/group.hpp"
#include "accelerate/env/memory_format.hpp"
#include "accelerate/env/parallelism_config.hpp"
#include "accelerate/env/precision.hpp"
#include "accelerate/gradient/bucket_plan.hpp"
#include "accelerate/gradient/bucket_reducer.hpp"
#include "accelerate/gradient/sync_schedule.hpp"
#include "accelerate/precision/grad_scaler.hpp"
#include "accelerate/precision/policy.hpp"
#include "accelerate/sharding/plugin.hpp"
#include "accelerate/sharding/strategy.hpp"
#include "accelerate/tracking/trackers.hpp"

namespace accelerate {

/// Compute precision of prepared models: no, bf16 or fp16. Parameters, optimizers and outputs stay in float32.
using Precision = env::Precision;

/// Order in memory of prepared modules and batches: contiguous, channels_last or channels_last_3d.
using MemoryFormat = env::MemoryFormat;

/// Precision of float32 matrix products: highest, high or medium, as in torch.set_float32_matmul_precision().
using Float32MatmulPrecision = env::Float32MatmulPrecision;

/// Kind of job, with Hugging Face Accelerate's names. multi_gpu is any accelerator, fsdp is several
/// ranks with any sharding strategy.
enum class DistributedType { no, multi_cpu, multi_gpu, fsdp };

/// Divisor of the loss in a short last window of m < k = gradient_accumulation_steps micro-batches. true_length divides
/// by m, so that every sample has the same weight. full_length divides by k, as Hugging Face Accelerate does, so that
/// the samples of the short window have less weight.
using ShortWindow = gradient::ShortWindow;

/// The parts of the training state that are divided over the ranks: no_shard, shard_optim_op (ZeRO-1), shard_grad_op
/// (ZeRO-2) or full_shard (ZeRO-3); hybrid_shard and hybrid_shard_zero2 divide within a machine and replicate across
/// machines.
using ShardingStrategy = sharding::ShardingStrategy;
using StateDictType = sharding::StateDictType;
using BackwardPrefetch = sharding::BackwardPrefetch;
using AutoWrapPolicy = sharding::AutoWrapPolicy;
using FullyShardedDataParallelPlugin = sharding::FullyShardedDataParallelPlugin;

using ProjectConfiguration = checkpoint::ProjectConfiguration;

struct AccumulationOptions {
  /// If true, the last batch of an epoch ends its window. If false, windows continue across epochs.
  bool sync_with_dataloader = true;
  /// If true, gradients are reduced after every micro-batch. Optimizers still step only at the end of a window.
  bool sync_each_batch = false;
  ShortWindow short_window = ShortWindow::true_length;
};

/// Options of accelerator.autocast().
struct AutocastOptions {
  /// If false, operations compute in the dtypes of their inputs.
  bool enabled = true;
  /// If true, low-precision copies of weights are cached until the outermost autocast block ends.
  bool cache_enabled = true;
};

/// Number of schedule steps per optimizer step for a prepared scheduler.
enum class SchedulerUnit {
  optimizer_steps,  ///< one: schedules count optimizer steps of the whole job
  processes,        ///< num_processes, as in Hugging Face Accelerate, for schedules written for a single process
};

/// A value given here takes precedence. If a std::optional is unset, the value is taken from the launcher or the
/// environment variable named in the comment, then from the config file named by ACCELERATE_CONFIG_FILE, then from the
/// default in the comment.
struct AcceleratorOptions {
  /// If true, the CPU is used even if there is a GPU. The variable is ACCELERATE_USE_CPU; the default is false.
  std::optional<bool> cpu{};
  /// Autocast precision of forward and backward of prepared models. fp16 scales the loss. The variable is
  /// ACCELERATE_MIXED_PRECISION; the default is no.
  std::optional<Precision> mixed_precision{};
  /// Micro-batches per optimizer step, at least 1. The variable is ACCELERATE_GRADIENT_ACCUMULATION_STEPS; the default
  /// is 1.
  std::optional<int64_t> gradient_accumulation_steps{};
  /// CPU backend: "mpi" or "gloo". The variable is ACCELERATE_BACKEND; the default is mpi if the ranks were started by
  /// MPI, otherwise gloo.
  std::optional<std::string> backend{};
  /// Time limit of a collective; the error then names the missing peer. The variable is ACCELERATE_TIMEOUT in seconds;
  /// the default is 600 s.
  std::optional<std::chrono::seconds> timeout{};
  /// If true, every collective is compared across the ranks before it runs, and so is the loader order at the start of
  /// each pass. All ranks must then start the pass. The variable is ACCELERATE_DEBUG_MODE; the default is false.
  std::optional<bool> debug{};
  /// Device: "cpu", "cuda:1", "cuda" (index by local rank), or another LibTorch device. Ranks that are threads use the
  /// CPU unless this option names an accelerator. The variable is ACCELERATE_TORCH_DEVICE; the default is the
  /// accelerator, otherwise cpu.
  std::optional<std::string> device{};
  /// Number of LibTorch threads of this rank. The variable is OMP_NUM_THREADS; the default is an equal share of the
  /// machine's physical cores (and CPU quota).
  std::optional<int64_t> threads_per_rank{};
  /// If true, several ranks may share a GPU, assigned in turn. If false, more ranks than GPUs on a machine are an
  /// error. The variable is ACCELERATE_ALLOW_SHARED_GPUS; the default is false.
  std::optional<bool> allow_shared_gpus{};
  /// Memory format of prepared modules and of batches from prepared loaders. With channels_last, prepare() reorders
  /// parameters and buffers of 4 dimensions, and loaders reorder tensors of 4 dimensions, on the device. With
  /// channels_last_3d, the same is done for 5 dimensions. Results are equal within rounding, and files are the same.
  /// Tensors that are not images are reordered, too, if they have that many dimensions. The variable is
  /// ACCELERATE_MEMORY_FORMAT; the default is contiguous, which reorders nothing.
  std::optional<MemoryFormat> memory_format{};
  /// Precision of float32 matrix products, as torch.set_float32_matmul_precision(). The constructor sets it for the
  /// whole process, and it stays set. The variable is ACCELERATE_FLOAT32_MATMUL_PRECISION. If both are unset, it is not
  /// changed.
  std::optional<Float32MatmulPrecision> float32_matmul_precision{};
  /// If true, cuDNN times its algorithms for each new shape of a convolution and uses the fastest, as
  /// torch.backends.cudnn.benchmark does. The constructor sets it for the whole process, and it stays set. The variable
  /// is ACCELERATE_CUDNN_BENCHMARK. If both are unset, it is not changed.
  std::optional<bool> cudnn_benchmark{};
  /// The mesh of the job: sizes of data, tensor and pipeline parallelism. Their product must be the number of ranks.
  /// Gradients are averaged, batches divided and metrics gathered over the data parallel ranks only. An unset size is
  /// read from PARALLELISM_CONFIG_TP_SIZE and the other variables of this kind; without this option they are used only
  /// if ACCELERATE_USE_PARALLELISM_CONFIG is true. By default all ranks are data parallel.
  std::optional<ParallelismConfig> parallelism_config{};
  /// The parts of the training state that are divided over the ranks, for parameters of float32, float64, and bfloat16
  /// with precision::pure_bf16(), and the optimizers SGD, Adam, AdamW, Adagrad and RMSprop. With shard_optim_op each
  /// rank keeps the optimizer state of an equal part of the parameters, steps on it and receives the other parts; with
  /// shard_grad_op it also keeps only that part of the gradients; with full_shard also of the parameters, which are
  /// gathered when an operator uses them. With hybrid_shard the ranks of a machine divide these among them. step() of a
  /// prepared optimizer is then collective. If unset, the value of fsdp_plugin or of
  /// FSDP_SHARDING_STRATEGY is used; the default is no_shard.
  std::optional<ShardingStrategy> sharding{};
  /// Further options of sharded training.
  FullyShardedDataParallelPlugin fsdp_plugin{};

  AccumulationOptions accumulation{};
  /// Replaces mixed_precision by other dtypes. precision::pure_bf16() stores parameters, their gradients and
  /// floating-point buffers in bfloat16; optimizers step on float32 master weights.
  std::optional<precision::Policy> precision_policy{};
  /// Growth and backoff of the loss scale with fp16.
  precision::GradScalerOptions grad_scaler{};
  /// If true, backward() throws an error with the step and rank if the loss is NaN. The host then waits for the device
  /// in each backward().
  bool stop_at_nan_loss = false;
  gradient::BucketOptions buckets{};
  /// Reduction of gradient buckets: gradient::fp16_compress_hook(), bf16_compress_hook(), power_sgd_hook(),
  /// batched_power_sgd_hook(), a 16-bit wrapper around one of these, or a user hook made by gradient::comm_hook() or a
  /// BucketReducer. If unset, buckets are all-reduced in the dtype of the gradients.
  gradient::CommHook comm_hook{};
  /// If true, rank 0's buffers are broadcast in prepare(), and before each forward that follows a synchronised training
  /// forward. If false, each rank keeps its own buffers from prepare() on, as in PyTorch.
  bool broadcast_buffers = true;
  /// Asserts that every backward uses every parameter, which saves the search for unused parameters.
  bool static_graph = false;
  /// If true, prepared SGD, Adam, AdamW, Adagrad and RMSprop optimizers step by a fused kernel; the results differ from
  /// those of LibTorch's step() in the last bits. If false, they call LibTorch's step() and are bit-identical to it.
  bool fused_optimizer = true;
  /// If true, every rank gets the same number of batches; the last batches are padded with samples from the start of
  /// the data.
  bool even_batches = true;
  /// If true, a loader's batch_size is the total over all ranks and must be a multiple of their number; each rank
  /// computes its part of every batch. If false, it is the size per rank, and one step consumes one batch per rank.
  bool split_batches = false;
  /// If true, rank 0 reads all batches and sends each rank its own, for data that only one rank can read or that is
  /// expensive to read. Ranks of one tensor parallel group or pipeline receive the same batch. If unset, this is done
  /// for streams only (data::StreamLoader), because otherwise every rank would read the whole stream.
  std::optional<bool> dispatch_batches{};
  /// If true, prepare() moves modules to the device, and loaders move their batches there.
  bool device_placement = true;
  /// If true, a prepared scheduler steps only when its optimizer steps. If false, every call of its step() advances it.
  bool step_scheduler_with_optimizer = true;
  SchedulerUnit scheduler_unit = SchedulerUnit::optimizer_steps;
  /// After this number of steps, a prepared optimizer compares its models bit for bit across the ranks, as
  /// check_synchronized() does: one pass over the parameters and 16 bytes of communication. The check is skipped inside
  /// local_sgd() and join_uneven_inputs(). If 0, it never runs.
  int64_t check_synchronized_every = 0;
  /// Folder and maximum number of the checkpoints that save_state() writes if no folder is given.
  checkpoint::ProjectConfiguration project{};
  /// Trackers for init_trackers() and log(): "csv", "jsonl", "tensorboard", "all" for these three, or a std::shared_ptr
  /// of a class derived from tracking::Tracker.
  std::vector<tracking::LogWith> log_with{};
  /// Folder for trackers that write files; each run gets a subfolder with its project's name. If unset,
  /// project.project_dir is used.
  std::optional<std::string> logging_dir{};
  /// If true, a process group is created even for a single process, for tests of a backend on one device.
  bool force_process_group = false;
};

}  // namespace accelerate
