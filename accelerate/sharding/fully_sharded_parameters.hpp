// SPDX-License-Identifier: Apache-2.0
// Parameters, gradients and optimizer state of a model, of which each rank keeps a part.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "accelerate/sharding/full_shard_options.hpp"
#include "accelerate/sharding/parameter_sharding.hpp"
#include "accelerate/sharding/unit_buffers.hpp"
#include "accelerate/sharding/whole_parameters.hpp"
#include "accelerate/sharding/whole_unit.hpp"

namespace accelerate::sharding {

/// full_shard (ZeRO-3) and shard_grad_op (ZeRO-2).
///
/// A unit of parameters has a flat tensor, of which each rank keeps an equal part. With shard_parameters a unit is
/// gathered when an operator uses one of its parameters, and freed when another unit is gathered, or when the gradients
/// of all its parameters arrived. At most two units are whole at a time: the unit in use and the prefetched one.
///
/// Gradients are moved into a flat tensor of their unit when they arrive, and reduced to this rank's part when the unit
/// is complete; Tensor::grad() of a parameter is undefined afterwards. At most two units have whole gradients at a
/// time.
///
/// Ranks reduce the units in one order. If they must gather, all ranks of a shard group must use the units in one
/// order, too, because each gather is collective. before_step() compares the orders.
/// Forwards on several threads are supported if all ranks run them in one order.
class FullyShardedParameters final : public ParameterSharding {
 public:
  /// Gives the parameters of a unit their values, equal on all ranks. May be collective.
  using BeforeUnit = std::function<void(const std::vector<at::Tensor>&)>;

  /// Collective. Frees the parameters' memory.
  /// \param mesh        Groups for exclusive use by this object. Each of mesh.shard divides the parameters; gradients
  ///                     are averaged over mesh.world.
  /// \param parameters  Whole parameters in the order of the model, each once, equal on all ranks after before_unit.
  /// \param before_unit Called for each unit before it is divided, in one order on all ranks.
  /// \param alone       Parameters that are a unit each, so that their division depends on no other parameter.
  /// \throws Error (usage) on every rank, for the reasons of ParameterSharding and if two parameters share memory.
  FullyShardedParameters(const ShardMesh& mesh, const std::vector<state::ParameterShard>& parameters,
                         const FullShardOptions& options, const BeforeUnit& before_unit = {}, const Keys& alone = {});
  ~FullyShardedParameters() override;
  void restore() override;

  /// Must enclose each forward: within it, and within backward and WholeParameters, operators may use the parameters.
  /// \param learns  True if the forward builds a graph.
  /// \param sync    True if the gradients of the next backward are reduced; otherwise they stay whole on this rank.
  void before_forward(bool learns, bool sync);
  void after_forward() noexcept;
  /// Overrides the decision of the last forward.
  void set_sync(bool sync);

  /// Number of gradients of the listed parameters that arrived so far.
  [[nodiscard]] int64_t arrivals(const Keys& keys) const;
  /// True if a unit with one of the listed parameters has a gradient. Equal on all ranks after a reduction.
  [[nodiscard]] bool has_gradient(const Keys& keys) const;
  /// Returns this rank's parts of the gradients of the listed parameters, for clipping and unscaling.
  [[nodiscard]] std::vector<at::Tensor> gradients(const Keys& keys);
  void zero(const Keys& keys, bool set_to_none);
  void scale_gradients(double factor);

  /// Compares the order of the collectives over the ranks, and determines which parameters any rank used. Collective.
  /// \throws Error (usage) on every rank if the orders differ, or if a gradient of any rank was never reduced.
  void before_step();
  /// Must be called before a step on the listed parameters. Warns once if a backward added to gradients that were
  /// stepped on and not zeroed since: zero_grad() of a module or of LibTorch's optimizer does not reach sharded
  /// gradients.
  void warn_about_old_gradients(const Keys& keys) const;
  [[nodiscard]] std::vector<state::ParameterShard> shards(const Keys& keys) override;
  /// The same with the gradients of all parameters, also of those that no rank used, before a step.
  [[nodiscard]] std::vector<state::ParameterShard> shards_with_gradients(const Keys& keys);
  void after_step(const Keys& keys) override;

  [[nodiscard]] bool shards_parameters() const;
  /// Returns the counts of the pool of whole units on the CPU.
  [[nodiscard]] UnitBuffers::Counts buffer_counts() const;
  /// True if the parameter has a float32 master, of which this rank keeps its part.
  [[nodiscard]] bool has_master(const void* key) const;
  /// Must be called after user code replaced values and masters in shards(). Collective.
  void parts_replaced();
  /// Opens a scope in which all parameters are whole. Operators may change them; each rank then keeps its part of the
  /// new values, which must be equal on all ranks. Collective.
  void open_whole();
  void close_whole() noexcept;

  /// Runs forwards and backwards in any order, such as those of the micro-batches of a pipeline, as one backward: their
  /// gradients are added up on this rank, and reduced once at the end. Every rank reduces all units, even if no
  /// gradient arrived. Must be called within before_forward() and after_forward().
  void run_micro_batches(const std::function<void()>& run);
  /// Within run_micro_batches(): returns the sum of this rank's gradients of a parameter so far, divided by the number
  /// of ranks, in the shape of the parameter. Changes of its values change the gradient. Undefined if the gradients are
  /// not reduced at the end, because of no_sync.
  /// \throws Error (usage) if the parameter did not need a gradient in prepare().
  [[nodiscard]] at::Tensor held_gradient(const at::Tensor& parameter);

  /// Runs a backward, and completes the reductions of the given models.
  static void run_backward(std::span<FullyShardedParameters* const> models, const std::function<void()>& backward);

 private:
  struct Core;
  [[nodiscard]] std::vector<state::ParameterShard> shards(const Keys& keys, bool only_used);
  void keep_whole();
  void view_own_elements();
  /// This rank's elements of one parameter, in the unit's part and its masters.
  struct OwnElements {
    at::Tensor value{}, master{};
  };
  std::shared_ptr<Core> core_;
  std::vector<OwnElements> own_elements_;  // of each parameter of which this rank has elements
};

}  // namespace accelerate::sharding
