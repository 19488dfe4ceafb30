// SPDX-License-Identifier: Apache-2.0
// The division of one model's parameters over the ranks of a group, for every sharding strategy.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/sharding/shard_mesh.hpp"
#include "accelerate/sharding/shard_plan.hpp"
#include "accelerate/sharding/use_order.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace accelerate::sharding {

class WholeUnit;

/// Each rank steps on its own part of every parameter: a range in memory order, so a dense parameter with other strides
/// (channels last) needs no copy. Not thread-safe.
class ParameterSharding {
 public:
  using Keys = std::unordered_set<const void*>;

  ParameterSharding(const ParameterSharding&) = delete;
  ParameterSharding& operator=(const ParameterSharding&) = delete;
  virtual ~ParameterSharding() = default;

  [[nodiscard]] bool manages(const void* key) const { return index_of_.contains(key); }
  /// Returns the device of this rank's part of a parameter and of its optimizer state.
  [[nodiscard]] c10::Device part_device(const at::Tensor& parameter) const {
    return parts_on_host_ ? c10::Device(c10::kCPU) : parameter.device();
  }
  /// Returns the range of this rank, which may be empty; unset if the parameter is not managed.
  [[nodiscard]] std::optional<ShardRange> range_of(const void* key) const;

  /// Returns the non-empty parts of this rank with their gradients, as tensors of [end - begin] elements. A step on
  /// them changes the parameters. Valid until the next forward. \param keys  Only these parameters; others are ignored.
  /// \throws Error (usage) if a listed parameter changed its shape, dtype, device or strides since the constructor, or
  ///         if its gradient is sparse or has another dtype; also for a parameter without a part on this rank, so that
  ///         all ranks throw.
  [[nodiscard]] virtual std::vector<state::ParameterShard> shards(const Keys& keys) = 0;
  /// Makes the steps of all ranks on the listed parameters visible on every rank. Increments the version counters, so
  /// that a backward through an older graph is an error. If the ranks keep whole parameters, their values may arrive
  /// later: operators wait for those that they use, in any thread. Collective.
  virtual void after_step(const Keys& keys) = 0;
  /// Waits until the memory of all parameters has the values of the last step, for code that reads it without an
  /// operator. \throws Error (peer) if a rank failed.
  void complete_step();
  /// Must be called after a step was captured as a graph, of which each replay exchanges the parameters.
  void forget_exchange();
  /// Makes the parameters whole and independent of this object, which must not be used afterwards. Collective.
  virtual void restore() = 0;
  /// Must be called before a forward that builds a graph. The first steps exchange parameters in the order of the last
  /// forward before them.
  void begin_forward() { use_order_->begin_pass(); }

  /// Returns the whole tensor of a parameter's shape from the ranks' ranges on rank 0, in the memory of the host;
  /// undefined on the other ranks. With hybrid sharding only the replica of rank 0 sends its ranges. Collective.
  /// \param part  [end - begin] elements of this rank; undefined counts as no elements.
  /// \param operation  The user's call, which errors name beside the parameter.
  [[nodiscard]] at::Tensor gather_to_rank_0(const void* key, const at::Tensor& part, std::string_view operation) const;

  /// The managed parameters in the order of the model, without gradients.
  [[nodiscard]] const std::vector<state::ParameterShard>& parameters() const { return parameters_; }
  /// Keys of the managed parameters.
  [[nodiscard]] const Keys& keys() const { return keys_; }
  [[nodiscard]] const ShardPlan& plan() const { return plan_; }
  /// The ranks that divide the parameters among them.
  [[nodiscard]] const comm::Group& group() const { return mesh_.shard; }
  [[nodiscard]] const ShardMesh& mesh() const { return mesh_; }
  /// Returns "2 units, 1000 elements on 4 ranks, 256 on this one", with hybrid sharding ", 2 replicas", and one more
  /// line for each unit.
  [[nodiscard]] std::string description() const;

 protected:
  /// Collective. Verifies that the parameters can be divided.
  /// \param mesh        Groups for exclusive use by this object.
  /// \param parameters  Whole parameters in the order of the model, each once. Their names, shapes, strides and dtypes
  ///                     must be the same on all ranks.
  /// \param units       Unit of each parameter. Parameters of one unit with different dtypes, or of which only some
  ///   need a gradient, are in separate units of the plan.
  /// \param unit_bytes  Maximum size of a unit of the plan, at least 1.
  /// \throws Error (usage) on every rank, if a parameter that needs a gradient is neither float32 nor float64 and has
  ///         no master, or if a parameter has gaps or overlaps in memory, or had another range in this process before.
  ParameterSharding(ShardMesh mesh, std::vector<state::ParameterShard> parameters, const std::vector<int64_t>& units,
                    int64_t unit_bytes);

  /// Returns the units with a further one for each parameter in `alone`.
  [[nodiscard]] static std::vector<int64_t> separated(std::vector<int64_t> units,
                                                      const std::vector<state::ParameterShard>& parameters,
                                                      const Keys& alone);
  /// \throws Error (usage) if the parameter changed since the constructor.
  void check_unchanged(size_t index) const;
  /// \throws Error (usage) if the gradient is sparse or has another dtype than the parameter.
  void check_gradient(size_t index) const;
  /// Starts the exchanges of whole units. Collective.
  /// \param is_exchanged  By unit, the same on all ranks.
  /// \param waits_later   If false, waits for them.
  void start_exchanges(const comm::Group& group, const std::vector<bool>& is_exchanged, bool waits_later);
  /// Makes the parameters of whole units independent of this object.
  void release_whole_units();

  ShardMesh mesh_;
  std::shared_ptr<UseOrder> use_order_ = std::make_shared<UseOrder>();
  std::vector<state::ParameterShard> parameters_;
  ShardPlan plan_;
  std::unordered_map<const void*, size_t> index_of_;
  std::vector<ShardRange> mine_;  ///< by parameter
  std::vector<ShardItem> items_;
  bool parts_on_host_ = false;
  std::vector<std::shared_ptr<WholeUnit>> whole_units_;  ///< if the ranks keep whole parameters; null without elements

 private:
  void check_layout() const;
  void record() const;

  Keys keys_;
  struct Kind {
    at::ScalarType dtype;
    at::Device device;
  };
  std::vector<Kind> kinds_;
  std::vector<std::vector<int64_t>> strides_;
};

/// Returns a range in memory order as a flat tensor. Shares memory and the version counter.
[[nodiscard]] at::Tensor flat_range(const at::Tensor& dense, int64_t begin, int64_t end);

}  // namespace accelerate::sharding
