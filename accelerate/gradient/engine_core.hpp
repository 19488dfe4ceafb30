// SPDX-License-Identifier: Apache-2.0
// Private: what an Engine does. Its life is a cycle of reductions:
//
//   begin     the first gradient of a backward arrives, or this rank joins without one
//   arrived   gradient by gradient; full buckets are launched in order
//   launch    backward is over: the late buckets follow
//   finish    waits, settles what unused parameters get; then everything is as before begin
//
// launch and finish are apart, because with several engines all of them must have launched before one waits.
// Before the first reduction there are no buckets: finish then learns their layout and launches them. Parameters that
// module->to() moved have other accumulators: follow_parameters() hooks those, and the layout is learnt again.
#pragma once

#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>
#include <vector>

#include "accelerate/gradient/engine.hpp"
#include "accelerate/gradient/flat_buckets.hpp"
#include "accelerate/gradient/join_coordinator.hpp"
#include "accelerate/gradient/sync_rule.hpp"

namespace accelerate::gradient {

struct Engine::Core : std::enable_shared_from_this<Engine::Core> {
  Core(comm::Group the_group, std::vector<ParameterState> the_states, EngineOptions the_options);
  ~Core();
  Core(const Core&) = delete;
  Core& operator=(const Core&) = delete;
  /// After construction: the hooks know the core by a weak pointer.
  void hook_up();
  void unhook();
  /// To be called wherever parameters may have moved to another dtype or device: costs a look at each.
  void follow_parameters();

  // arrived(), end_of_backward() and end_of_launch() run on the threads of a backward and lock the mutex themselves.
  // The other functions below are called with the mutex locked. The public members are also read and written without
  // it, by the thread that calls Engine, which waits while a backward runs.
  void arrived(size_t index);
  void end_of_backward();
  void end_of_launch();
  /// This rank takes part in a reduction that has not ended.
  [[nodiscard]] bool begun() const { return active_; }
  void join();      ///< begin without a graph
  void launch();    ///< launches the remaining buckets
  void finish();    ///< waits and settles; throws what peers do
  void abandon();   ///< a reduction that never ran is forgotten, with its gradients
  void complete();  ///< completes a reduction whose backward failed, so that the ranks stay in step

  void zero(ParameterState& state);           ///< drops the gradient
  void zero_in_place(ParameterState& state);  ///< a gradient that is there becomes zeros that count as a gradient
  /// The same for the states that are listed, bucket by bucket.
  void zero_in_place(std::vector<bool> listed);
  [[nodiscard]] std::vector<state::Piece> pieces();
  void zero_all();
  void forgive();  ///< a reduction that broke off is forgotten when no gradient of it is left
  void before_step();
  [[nodiscard]] const ParameterState* unreduced() const;  ///< a state with a gradient that no reduction has seen
  [[nodiscard]] std::vector<at::Tensor> gradients();

  comm::Group group;
  EngineOptions options;
  std::mutex mutex;
  std::vector<ParameterState> states;
  std::unordered_map<const void*, size_t> index_of;  ///< by TensorImpl
  BucketPlan plan;
  std::vector<FlatBucket> buckets;  ///< empty before the first reduction, unless the options gave a plan
  std::unique_ptr<BucketReducer> reducer;

  SyncRule rule;
  bool in_window = false;
  bool touched = false;
  bool local_allowed = false;
  bool broken_off = false;  ///< a reduction failed, gradients are neither local nor reduced
  /// Set while run_backward() will finish the reductions itself; gone when that backward is over or has thrown.
  std::shared_ptr<void> deferral;
  JoinCoordinator* join_coordinator = nullptr;
  int64_t join_operation = 0;

 private:
  using Accumulator = decltype(torch::autograd::impl::grad_accumulator(std::declval<const at::Tensor&>()));

  [[nodiscard]] bool parameters_moved() const;
  void begin();
  void arrived_locally(ParameterState& state);
  void refuse_passing_step(const ParameterState& state) const;
  void warn_of_graph(const ParameterState& state);
  template <typename Collective>
  void for_backward(const Collective& collective) const;
  void launch_bucket(FlatBucket& bucket);
  void divide_by(int64_t ranks);
  void fill(FlatBucket& bucket);
  void forget_blanks();
  static void replace_by_view(ParameterState& state);
  void write_counts(const at::Tensor& counts);
  void read_counts();
  void learn_layout();
  void lay_out_as_given();
  void forget_layout();
  void expect_gradients();
  void finish_sparse(double factor);
  void finish_unused();
  void give_back(size_t index);
  void check_static_graph() const;
  void reset();

  std::string what_;         ///< these gradients, for messages about peers
  bool said_graph_ = false;  ///< the warning about create_graph
  std::vector<Accumulator> accumulators_;
  std::vector<uintptr_t> hook_keys_;

  bool active_ = false;
  int graph_task_ = -1;
  std::weak_ptr<void> backward_alive_;  ///< expires when the backward that began the reduction is over or died
  bool early_ = true;                   ///< buckets may be launched before backward ends
  size_t next_ = 0;                     ///< first bucket not yet launched
  int64_t divisor_ = 1;
  at::Tensor share_;            ///< 1 / divisor_
  std::vector<int64_t> order_;  ///< of arrival, in the first reduction
};

}  // namespace accelerate::gradient
