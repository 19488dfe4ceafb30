// SPDX-License-Identifier: Apache-2.0
// Private: the state of FullyShardedParameters. Functions lock the mutex themselves, because operators and hooks run on
// the threads of forwards and backwards.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "accelerate/device/factor.hpp"
#include "accelerate/sharding/fully_sharded_parameters.hpp"
#include "accelerate/sharding/gather_order.hpp"
#include "accelerate/sharding/sharded_unit.hpp"
#include "accelerate/sharding/unit_buffers.hpp"
#include "accelerate/sharding/use_order.hpp"

namespace accelerate::sharding {

struct FullyShardedParameters::Core : UnitScheduler, std::enable_shared_from_this<FullyShardedParameters::Core> {
  /// \param gather_group  A duplicate of the shard group.
  Core(comm::Group gather_group, ShardMesh the_mesh, const FullShardOptions& the_options);
  /// Call after construction, because units and hooks have weak pointers to the core.
  void adopt(const ShardPlan& plan, const std::vector<state::ParameterShard>& parameters,
             const BeforeUnit& before_unit);
  void register_hooks();
  void remove_hooks();
  void restore();

  void use(ShardedUnit& unit, const units::GatheredParameter& parameter, bool writes) override;
  void release(ShardedUnit& unit) noexcept override;
  void before_forward(bool learns, bool sync);
  void after_forward() noexcept;
  void open_whole();
  void close_whole() noexcept;

  /// Called by autograd when a gradient was added to Tensor::grad().
  void arrived(ShardedUnit& unit, size_t member);
  void finish_backward();
  /// Keeps the gradients of the following backwards whole on this rank.
  void hold_gradients();
  /// The end of the backward reduces the gradients of all units, if `sync` was true.
  void release_gradients();
  void before_step();
  void zero(const Keys& keys, bool set_to_none);
  /// Drops the gradients of a backward that threw.
  void abort_failed_backward() noexcept;
  /// Frees the units that no operator uses, and returns their memory to the system.
  void free_all();
  /// With offload, the host waits for the copies. Must be called before the host reads or writes a part.
  void finish_copies();

  comm::Group gathers;
  ShardMesh mesh;
  FullShardOptions options;
  std::recursive_mutex mutex;
  std::shared_ptr<UnitBuffers> buffers;  ///< of whole parameters and gradients; empty between steps
  std::vector<std::shared_ptr<ShardedUnit>> units;
  std::vector<std::pair<ShardedUnit*, size_t>> places;  ///< unit and member of each parameter; null without elements
  bool sync = true;
  bool reduces_held = false;  ///< `sync` of held gradients
  int64_t backwards = 0;      ///< number of the last backward
  bool was_stepped = false;
  /// Set while run_backward() will complete the reductions; expires if its backward throws.
  std::shared_ptr<void> deferral;

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  [[nodiscard]] std::shared_ptr<PartCopies> copies_on(c10::Device device);
  void check_scope(const std::string& parameter) const;
  /// Return the problem, or "".
  [[nodiscard]] std::string moved_parameter() const;
  [[nodiscard]] std::string step_problem() const;
  void gather(ShardedUnit& unit);
  void prefetch();
  void begin_backward();
  void warn_about_missing_steps(const Keys& keys);
  /// True if some rank may have gradients of the unit, so that this rank must reduce it even without gradients.
  [[nodiscard]] bool must_reduce(const ShardedUnit& unit) const;
  void complete(ShardedUnit& unit);
  /// Reduces units in their order, up to the first one that is not complete, or all of them.
  void reduce_in_order(bool all);
  void reduce(ShardedUnit& unit);
  void advance_reductions(const ShardedUnit* newest);
  void sum_over_replicas(ShardedUnit& unit);
  void finish_reduction(ShardedUnit& unit);
  /// Runs a collective for the parameters of the unit. Its errors name the unit.
  template <typename Collective>
  void with_gather_context(const ShardedUnit& unit, const Collective& collective);
  void throw_different_orders(const std::vector<int64_t>& replica_of_rank);
  void fail_if_different(const std::vector<std::string>& histories, size_t rank, size_t other_rank) const;

  std::vector<std::shared_ptr<PartCopies>> copies_;  // of each accelerator, with offload
  device::Factor share_;                             // of a rank in the mean of the gradients
  std::vector<ShardedUnit*> resident_;               // with memory, in the order of their gathers
  GatherOrder order_;
  UseOrder completion_order_;             // of the units in backward
  std::vector<int64_t> reduction_order_;  // of all units, the same on all ranks
  size_t next_reduction_ = 0;             // in reduction_order_, in this backward
  int64_t scopes_ = 0, whole_scopes_ = 0;
  bool pass_learns_ = true;
  bool in_backward_ = false;
  bool had_backward_ = false;  // since the last forward began
  int64_t zeroed_without_step_ = 0;
  bool aborted_ = false;  // a backward failed, so the gradients of the ranks may differ
  std::weak_ptr<void> backward_alive_;
  std::vector<Accumulator> accumulators_;
  std::vector<uintptr_t> hook_keys_;
};

}  // namespace accelerate::sharding
