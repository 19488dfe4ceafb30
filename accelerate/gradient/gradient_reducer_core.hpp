// SPDX-License-Identifier: Apache-2.0
// Private: the state of a GradientReducer. A reduction has these phases:
//
//   begin     the first gradient of a backward arrives, or this rank joins without one
//   arrived   called per gradient; full buckets are launched in order
//   launch    after backward: launches the remaining buckets
//   finish    waits, sets the gradients of unused parameters, and returns to the state before begin
//
// launch and finish are separate, because with several reducers all of them must launch before one waits.
// The finish of the first reduction determines the layout of the buckets and launches them. If module->to() replaces
// accumulators, follow_parameters() hooks the new ones, and the layout is determined again.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/device/factor.hpp"
#include "accelerate/gradient/flat_buckets.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"
#include "accelerate/gradient/join_coordinator.hpp"
#include "accelerate/gradient/sync_rule.hpp"

namespace accelerate::gradient {

struct GradientReducer::Core : std::enable_shared_from_this<GradientReducer::Core> {
  Core(comm::Group the_group, std::vector<ParameterState> the_states, GradientReducerOptions the_options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  /// Call after construction, because the hooks have a weak pointer to the core.
  void register_hooks();
  void remove_hooks();
  /// Call where parameters may have moved to another dtype or device. Checks every parameter.
  void follow_parameters();

  // arrived(), end_of_backward() and end_of_launch() run on the threads of a backward and lock the mutex themselves.
  // begun(), first_unreduced() and the public members are also used without it, by the thread that calls
  // GradientReducer, which waits while a backward runs. The other functions below are called with the mutex locked.
  void arrived(size_t index);
  void end_of_backward();
  void end_of_launch();
  /// True during a reduction of this rank.
  [[nodiscard]] bool begun() const { return reduction_started_; }
  void join();      ///< begins without a graph
  void launch();    ///< launches the remaining buckets
  void finish();    ///< waits for the results; throws errors of other ranks
  void abandon();   ///< drops a reduction that never ran, and its gradients
  void complete();  ///< completes a reduction with a failed backward, so that the ranks stay synchronised

  void zero(ParameterState& state);           ///< drops the gradient
  void zero_in_place(ParameterState& state);  ///< an existing gradient becomes zeros, which still count as a gradient
  /// The same for the listed states, bucket by bucket.
  void zero_in_place(std::vector<bool> listed);
  [[nodiscard]] std::vector<state::ParameterShard> parameter_shards();
  void zero_all();
  void clear_aborted_state();  ///< clears reduction_aborted once no gradient is left
  void before_step();
  [[nodiscard]] const ParameterState* first_unreduced() const;  ///< a state with an unreduced gradient, or null
  [[nodiscard]] std::vector<at::Tensor> gradients();

  comm::Group group;
  GradientReducerOptions options;
  std::mutex mutex;
  std::vector<ParameterState> states;
  std::unordered_map<const void*, size_t> index_of;  ///< by TensorImpl
  BucketPlan plan;
  std::vector<FlatBucket> buckets;  ///< empty before the first reduction, unless the options have a plan
  std::unique_ptr<BucketReducer> reducer;

  SyncRule rule;
  bool in_window = false;
  bool watches_writes = false;  ///< false if no state's `writes` is armed
  bool has_pending_gradients = false;
  bool local_allowed = false;
  bool reduction_aborted = false;  ///< a reduction failed, so gradients are neither local nor reduced
  /// Set while run_backward() will finish the reductions itself; reset when its backward ends or throws.
  std::shared_ptr<void> deferral;
  JoinCoordinator* join_coordinator = nullptr;
  int64_t join_operation = 0;

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  [[nodiscard]] bool parameters_moved() const;
  void begin();
  void record_local_gradient(ParameterState& state);
  void throw_step_inside_window(const ParameterState& state) const;
  void warn_of_graph(const ParameterState& state);
  template <typename Collective>
  void for_backward(const Collective& collective) const;
  void launch_bucket(FlatBucket& bucket);
  void divide_by(int64_t ranks);
  void fill(FlatBucket& bucket);
  void invalidate_zeroed_views();
  static void replace_by_view(ParameterState& state);
  void write_counts(const at::Tensor& counts);
  void read_counts();
  void build_layout_from_arrival_order();
  void apply_given_layout();
  void forget_layout();
  void mark_gradients_pending();
  void finish_sparse(double factor);
  void finish_unused_parameters();
  void restore_gradient(size_t index);
  void check_static_graph() const;
  void reset();

  std::string description_;           ///< lists the gradients, for errors of other ranks
  bool warned_create_graph_ = false;  ///< the warning about create_graph was logged
  std::vector<Accumulator> accumulators_;
  std::vector<uintptr_t> hook_keys_;

  bool reduction_started_ = false;
  int graph_task_ = -1;
  std::weak_ptr<void> backward_alive_;  ///< expires when the backward that began the reduction ends or throws
  bool early_ = true;                   ///< buckets may be launched before backward ends
  size_t next_ = 0;                     ///< first bucket not yet launched
  int64_t divisor_ = 1;
  device::Factor share_{1.0};   ///< 1 / divisor_
  std::vector<int64_t> order_;  ///< order of arrival in the first reduction
};

}  // namespace accelerate::gradient
