// SPDX-License-Identifier: Apache-2.0
// The facade's part that knows who runs beside whom, and what the processes do together.
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
#include "accelerate/job/process_control.hpp"
#include "accelerate/options.hpp"
#include "accelerate/prepared/loader.hpp"
#include "accelerate/prepared/metrics.hpp"
#include "accelerate/prepared/shared.hpp"
#include "accelerate/tree/collectives.hpp"
#include "accelerate/tree/split.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate {

/// The processes of a job, seen from one of them. An Accelerator is one.
class Processes {
 public:
  // Who and where -----------------------------------------------------------------------------------------------------
  [[nodiscard]] int64_t num_processes() const { return shared_->group.size(); }
  [[nodiscard]] int64_t process_index() const { return shared_->group.rank(); }
  [[nodiscard]] int64_t local_process_index() const { return local_rank_; }
  [[nodiscard]] bool is_main_process() const { return process_index() == 0; }
  [[nodiscard]] bool is_local_main_process() const { return local_process_index() == 0; }
  [[nodiscard]] bool is_last_process() const { return process_index() == num_processes() - 1; }
  [[nodiscard]] bool use_distributed() const { return num_processes() > 1; }
  [[nodiscard]] DistributedType distributed_type() const;
  [[nodiscard]] at::Device device() const { return shared_->device; }
  /// The ranks of the job; its backend() says how they talk.
  [[nodiscard]] const comm::Group& group() const { return shared_->group; }
  [[nodiscard]] const Place& place() const { return shared_->place; }

  // Together ----------------------------------------------------------------------------------------------------------
  /// Values are tensors or pairs, tuples, vectors, maps and structs of them (see tree/README.md).
  /// gather: [n_r, ...] of each rank to [sum n_r, ...] on every rank; of several ranks 0-dim counts as [1].
  template <typename Value>
  [[nodiscard]] Value gather(const Value& value) const {
    return tree::gather(value, shared_->group);
  }
  /// gather, without the samples that were repeated to fill the last batch of a loader. A tensor of a batch, or a view
  /// of one, is cut as that batch's loop says, and so are the tensors beside it in `value`. Other tensors are cut as
  /// the innermost open loop says. A second loader that is advanced by hand beside a loop is no loop of its own.
  template <typename Value>
  [[nodiscard]] Value gather_for_metrics(const Value& value) const {
    return prepared::cut_to_real(*shared_, value, tree::gather(value, shared_->group, "gather_for_metrics"));
  }
  /// The same for objects as bytes, one per sample of this rank's batch.
  [[nodiscard]] std::vector<std::string> gather_for_metrics(const std::vector<std::string>& objects) const {
    return prepared::gather_objects_for_metrics(*shared_, objects);
  }
  /// scale   the result is multiplied by it
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, comm::ReduceOp op = comm::ReduceOp::sum, double scale = 1.0) const {
    return tree::reduce(value, shared_->group, op, scale);
  }
  /// reduction   "sum", "mean", "max", "min" or "product"
  template <typename Value>
  [[nodiscard]] Value reduce(const Value& value, std::string_view reduction, double scale = 1.0) const {
    return reduce(value, prepared::reduce_op_of(reduction, place()), scale);
  }
  /// In place, as torch.distributed does; also returned.
  template <typename Value>
  Value broadcast(const Value& value, int64_t from_process = 0) const {
    return tree::broadcast(value, shared_->group, from_process);
  }
  template <typename Value>
  [[nodiscard]] Value pad_across_processes(const Value& value, const tree::PadOptions& options = {}) const {
    return tree::pad_across_processes(value, shared_->group, options);
  }
  /// Bytes of every rank, on every rank, in rank order.
  [[nodiscard]] std::vector<std::string> gather_object(std::string_view bytes) const;
  [[nodiscard]] std::string broadcast_object(std::string_view bytes, int64_t from_process = 0) const;
  /// Each of them from that rank; every rank gives as many.
  [[nodiscard]] std::vector<std::string> broadcast_object_list(std::vector<std::string> objects,
                                                               int64_t from_process = 0) const;
  /// This rank's part of a vector, tensor or map of them; the first ranks get one more. apply_padding: all the same
  /// number, the last element repeated.
  template <typename Value>
  [[nodiscard]] Value split_between_processes(const Value& inputs, bool apply_padding = false) const {
    return tree::split_between_processes(inputs, process_index(), num_processes(), apply_padding);
  }
  void wait_for_everyone() const { job::wait_in_turn(shared_->group, "wait_for_everyone"); }

  /// Any rank may set it; check_trigger() is then true once on every rank. Every rank calls check_trigger().
  void set_trigger() { trigger_ = true; }
  [[nodiscard]] bool check_trigger();

  /// The main process runs it before the others do (local: of this machine).
  template <std::invocable Function>
  void main_process_first(Function&& function) const {
    job::first(shared_->group, "main_process_first", is_main_process(), std::forward<Function>(function));
  }
  template <std::invocable Function>
  void local_main_process_first(Function&& function) const {
    job::first(shared_->group, "local_main_process_first", is_local_main_process(), std::forward<Function>(function));
  }
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
  /// To stdout, once on each machine.
  template <typename... Args>
  void print(fmt::format_string<Args...> format, Args&&... args) const {
    if (is_local_main_process()) write_stdout(fmt::format(format, std::forward<Args>(args)...));
  }

 protected:
  // Part of an Accelerator only: a copy, or what was moved out of one, would be half of it.
  Processes(const Processes&) = delete;
  Processes& operator=(const Processes&) = delete;
  Processes(Processes&&) = default;
  Processes& operator=(Processes&&) = default;
  ~Processes() = default;

  Processes(std::shared_ptr<prepared::Shared> shared, int64_t local_rank)
      : shared_(std::move(shared)), local_rank_(local_rank) {}

  std::shared_ptr<prepared::Shared> shared_;

 private:
  static void write_stdout(std::string_view text);

  int64_t local_rank_;
  bool trigger_ = false;
};

}  // namespace accelerate
