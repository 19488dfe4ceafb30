// SPDX-License-Identifier: Apache-2.0
// The part of the facade for ranks and collectives.
#pragma once

#include <fmt/format.h>

#include <concepts>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/context_parallel/sequence.hpp"
#include "accelerate/job/rank_ordering.hpp"
#include "accelerate/options.hpp"
#include "accelerate/prepared/accelerator_state.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/metrics.hpp"
#include "accelerate/tree/collectives.hpp"
#include "accelerate/tree/split.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate {

/// Base class of Accelerator: the place of this process in its job, the mesh, and collectives. Not thread-safe.
///
/// Collectives are called by every rank of the job, in the same order. They return when the results are ready: values
/// on the CPU can be read, values on an accelerator are visible to its current stream. If a rank is lost, late, or
/// makes another call, they throw Error (peer) on every rank, and the group is unusable afterwards.
class ProcessInfo {
 public:
  // Ranks -------------------------------------------------------------------------------------------------------------
  /// Number of ranks of the job.
  [[nodiscard]] int64_t num_processes() const { return accelerator_state_->mesh.world.size(); }
  /// Rank of this process in the job, from 0.
  [[nodiscard]] int64_t process_index() const { return accelerator_state_->mesh.world.rank(); }
  /// Rank of this process on its machine, from 0.
  [[nodiscard]] int64_t local_process_index() const { return local_rank_; }
  /// \returns true on one process of the job, rank 0.
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  /// \returns true on one process of each machine.
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  /// \returns true on the process with the highest rank of the job.
  [[nodiscard]] bool is_last_process() const { return process_index() == num_processes() - 1; }
  /// \returns true if the job has several processes.
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  /// \returns how the job is distributed: no (one process), fsdp (a sharded training state), multi_cpu or multi_gpu.
  [[nodiscard]] DistributedType distributed_type() const;
  /// Device of prepared models and batches.
  [[nodiscard]] at::Device device() const { return accelerator_state_->device; }
  /// The process group of all ranks of the job; Group::backend() returns the backend.
  [[nodiscard]] const comm::Group& group() const { return accelerator_state_->mesh.world; }
  /// Rank, world size and host for messages.
  [[nodiscard]] const RankContext& place() const { return accelerator_state_->place; }

  // The mesh ----------------------------------------------------------------------------------------------------------
  /// The sizes of all dimensions; their product is num_processes(). Without a configured mesh, all ranks are data
  /// parallel: dp_replicate_size is num_processes().
  [[nodiscard]] const ParallelismConfig& parallelism_config() const { return accelerator_state_->mesh.config; }
  /// Index of this rank in its tensor parallel group; 0 if tp_size is 1.
  [[nodiscard]] int64_t tensor_parallel_rank() const { return accelerator_state_->mesh.coordinates.tp; }
  /// Pipeline stage of this rank; 0 if pp_size is 1.
  [[nodiscard]] int64_t pipeline_parallel_rank() const { return accelerator_state_->mesh.coordinates.pp; }
  /// Index of this rank in its context parallel group; 0 if cp_size is 1.
  [[nodiscard]] int64_t context_parallel_rank() const { return accelerator_state_->mesh.coordinates.cp; }
  /// Index of this rank in the dimension dp_replicate, as in Hugging Face Accelerate. The index among all ranks that
  /// read different batches is data_parallel_group().rank().
  [[nodiscard]] int64_t data_parallel_rank() const { return accelerator_state_->mesh.coordinates.dp_replicate; }
  /// Index of this rank in the dimension dp_shard.
  [[nodiscard]] int64_t data_parallel_shard_rank() const { return accelerator_state_->mesh.coordinates.dp_shard; }
  /// True on the ranks that together have one copy of the model: their index in dp_replicate and cp is 0. For files
  /// that a program writes by itself; save_model() and save_state() need no such condition.
  [[nodiscard]] bool should_save_model() const { return data_parallel_rank() == 0 && context_parallel_rank() == 0; }
  /// Ranks that read different batches. Without a mesh: all ranks. Gradients are averaged over these ranks, and with
  /// cp_size above 1 also over the ranks of their context parallel groups.
  [[nodiscard]] const comm::Group& data_parallel_group() const { return accelerator_state_->mesh.data; }
  /// Ranks that read the same batches and have parts of the same layers, for nn::ColumnParallelLinear and
  /// nn::tensor_parallel(). One rank without a connection if tp_size is 1.
  [[nodiscard]] const comm::Group& tensor_parallel_group() const { return accelerator_state_->mesh.tensor; }
  /// Ranks that read the same batches and have parts of each sequence, for nn::context_parallel_attention(). One rank
  /// without a connection if cp_size is 1.
  [[nodiscard]] const comm::Group& context_parallel_group() const { return accelerator_state_->mesh.context; }
  /// Ranks that read the same batches and have different stages, for nn::Pipeline. One rank without a connection if
  /// pp_size is 1.
  [[nodiscard]] const comm::Group& pipeline_parallel_group() const { return accelerator_state_->mesh.pipeline; }

  // Collectives -------------------------------------------------------------------------------------------------------
  // They run over all ranks of the job, except for gather_for_metrics(), which runs over the data parallel ranks.

  /// Joins the tensors [n_r, ...] of every rank r along the first dimension to [sum n_r, ...] on every rank. With
  /// several ranks a 0-dim tensor counts as [1].
  ///
  /// \param value  A tensor, or a pair, tuple, vector, map or struct of tensors (see tree/README.md), as in all
  ///   collectives of this class.
  /// \returns the same structure with tensors in their own memory and without gradient history.
  template <typename Value>
  [[nodiscard]] Value gather(const Value& value) const {
    return tree::gather(value, accelerator_state_->mesh.world);
  }
  /// As gather(), but over the data parallel ranks, so that each sample counts once on a mesh with other kinds of
  /// parallelism, and without the samples that only pad the last batch of a loader. The position in the loop over the
  /// loader of a batch decides for tensors of that batch, for views of them, and for the other tensors in the same
  /// `value`. For all other tensors the innermost open loop decides, so an evaluation loop inside the training loop
  /// counts its own samples. A second loader that is advanced by hand inside a loop does not count as a loop, unless
  /// its iterator begins in the body and is compared with end() there: then it counts until the next body.
  template <typename Value>
  [[nodiscard]] Value gather_for_metrics(const Value& value) const {
    return prepared::drop_padding_of_active_loader(
        *accelerator_state_, value, tree::gather(value, accelerator_state_->mesh.data, "gather_for_metrics"));
  }
  /// As above, for objects as bytes, one per sample of this rank's batch.
  [[nodiscard]] std::vector<std::string> gather_for_metrics(const std::vector<std::string>& objects) const {
    return prepared::gather_objects_for_metrics(*accelerator_state_, objects);
  }
  /// Reduces each tensor over all ranks. The argument is not changed.
  ///
  /// \param scale  Factor of the result.
  /// \returns the same structure and shapes on every rank, in its own memory and without gradient history.
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, comm::ReduceOp op = comm::ReduceOp::sum, double scale = 1.0) const {
    return tree::reduce(value, accelerator_state_->mesh.world, op, scale);
  }
  /// As above.
  ///
  /// \param reduction  "sum", "mean", "max", "min" or "product".
  /// \throws Error (usage) if the reduction has another name.
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, std::string_view reduction, double scale = 1.0) const {
    return reduce(value, prepared::reduce_op_of(reduction, place()), scale);
  }
  /// Overwrites the tensors in place with the tensors of one rank, as torch.distributed does.
  ///
  /// \param from_process  Rank in the job.
  /// \returns the argument, for chaining.
  template <typename Value>
  Value broadcast(const Value& value, int64_t from_process = 0) const {
    return tree::broadcast(value, accelerator_state_->mesh.world, from_process);
  }
  /// Pads one dimension of every tensor to its greatest length on any rank.
  ///
  /// \returns the same structure and dtypes, in its own memory.
  template <typename Value>
  [[nodiscard]] Value pad_across_processes(const Value& value, const tree::PadOptions& options = {}) const {
    return tree::pad_across_processes(value, accelerator_state_->mesh.world, options);
  }
  /// \returns the bytes of every rank, in rank order. The lengths may differ.
  [[nodiscard]] std::vector<std::string> gather_object(std::string_view bytes) const;
  /// \returns the bytes of from_process. The argument is ignored on other ranks.
  [[nodiscard]] std::string broadcast_object(std::string_view bytes, int64_t from_process = 0) const;
  /// \param objects  A list of the same length on every rank. Its contents are ignored on other ranks.
  /// \returns the objects of from_process.
  [[nodiscard]] std::vector<std::string> broadcast_object_list(std::vector<std::string> objects,
                                                               int64_t from_process = 0) const;
  /// Splits a vector, a tensor, or a map of them into one contiguous part per rank. Not collective.
  ///
  /// \param apply_padding  If true, all parts have the same length, padded with copies of the last element. If false,
  ///   the first ranks have one element more where the length is not divisible.
  /// \returns the part of this rank. Tensors are views unless they are padded.
  /// \throws Error (usage) if values of a map differ in length.
  template <typename Value>
  [[nodiscard]] Value split_between_processes(const Value& inputs, bool apply_padding = false) const {
    return tree::split_between_processes(inputs, process_index(), num_processes(), apply_padding);
  }
  /// Returns this rank's part of each sequence, as nn::split_sequence() on context_parallel_group(): tokens, targets
  /// and positions before a forward. If cp_size is 1, the value is returned unchanged. Not collective.
  ///
  /// \param value  Equal on all ranks of the context parallel group.
  /// \param dim    Dimension of the sequence in every tensor.
  /// \throws Error (usage) if the length of a sequence is not divisible by 2 * cp_size.
  template <typename Value>
  [[nodiscard]] Value context_parallel_split(const Value& value, int64_t dim) const {
    return tree::map(value, [&](const at::Tensor& tensor) {
      return nn::split_sequence(accelerator_state_->mesh.context, tensor, dim);
    });
  }
  /// Blocks until all ranks have called it, and the memory of sharded parameters has the values of the last step.
  void wait_for_everyone() const;

  /// Sets a flag that check_trigger() returns on every rank.
  void set_trigger() { trigger_ = true; }
  /// Collective. \returns true once on every rank after any rank has called set_trigger().
  [[nodiscard]] bool check_trigger();

  /// Runs the function on the main process first, then on the other ranks. Collective.
  template <std::invocable Function>
  void main_process_first(Function&& function) const {
    job::run_rank_first(accelerator_state_->mesh.world, "main_process_first", is_main_process(),
                        std::forward<Function>(function));
  }
  /// The same on each machine, with its local main process first. Collective over all ranks.
  template <std::invocable Function>
  void local_main_process_first(Function&& function) const {
    job::run_rank_first(accelerator_state_->mesh.world, "local_main_process_first", is_local_main_process(),
                        std::forward<Function>(function));
  }
  /// Runs the function on the named process only; other processes return immediately. Not collective.
  template <std::invocable Function>
  void on_main_process(Function&& function) const {
    if (is_main_process()) function();
  }
  template <std::invocable Function>
  void on_local_main_process(Function&& function) const {
    if (is_local_main_process()) function();
  }
  template <std::invocable Function>
  void on_last_process(Function&& function) const {
    if (is_last_process()) function();
  }
  template <std::invocable Function>
  void on_process(int64_t process_index, Function&& function) const {
    if (this->process_index() == process_index) function();
  }
  template <std::invocable Function>
  void on_local_process(int64_t local_process_index, Function&& function) const {
    if (this->local_process_index() == local_process_index) function();
  }
  /// Writes to stdout, once on each machine.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_local_main_process()) write_stdout(fmt::format(format, std::forward<Args>(args)...));
  }

 protected:
  // Movable only as a part of an Accelerator, to prevent slicing.
  ProcessInfo(const ProcessInfo&) = delete;
  ProcessInfo& operator=(const ProcessInfo&) = delete;
  ProcessInfo(ProcessInfo&&) = default;
  ProcessInfo& operator=(ProcessInfo&&) = default;
  ~ProcessInfo() = default;

  ProcessInfo(std::shared_ptr<prepared::AcceleratorState> shared, int64_t local_rank)
      : accelerator_state_(std::move(shared)), local_rank_(local_rank) {}

  std::shared_ptr<prepared::AcceleratorState> accelerator_state_;

 private:
  static void write_stdout(std::string_view text);

  int64_t local_rank_;
  bool trigger_ = false;
};

}  // namespace accelerate
