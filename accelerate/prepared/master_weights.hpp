// SPDX-License-Identifier: Apache-2.0
// Master weights: float32 copies of parameters that are stored in bfloat16. Optimizers step on them.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/named_tensor.hpp"
#include "accelerate/gradient/write_stamp.hpp"
#include "accelerate/state/parameter_shard.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::prepared {

/// bfloat16 loses a step that is smaller than half the distance of two numbers; the master accumulates it. After each
/// step the parameter is the rounded master. Other in-place changes of a parameter (loading, broadcasts) are copied to
/// the master. An element that still, or again, equals the rounded master leaves the master unchanged.
///
/// \note A write through data() does not change the version counter. It is detected only on the CPU, and only if it
///   changes the first 64 bytes.
class MasterWeights {
 public:
  /// Copies the trainable parameters. Must be called before they are cast.
  void keep(const std::vector<gradient::NamedTensor>& parameters);
  /// Broadcasts rank 0's masters to all ranks. Must be called after the parameters are cast. Collective.
  void make_equal(const comm::Group& group, const std::vector<gradient::NamedTensor>& parameters);
  /// Forgets the masters of parameters of which sharding keeps the masters from now on. keep() ignores them.
  void hand_over(const std::vector<gradient::NamedTensor>& parameters);
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] bool has(const at::Tensor& parameter) const {
    return entries_.contains(parameter.unsafeGetTensorImpl());
  }
  /// Sets the master to a value of the parameter's shape, and the parameter to the rounded value.
  void set(const at::Tensor& parameter, const at::Tensor& master);
  void clear() {
    entries_.clear();
    handed_over_.clear();
  }

  /// Returns the master of each parameter, or the parameter itself if it has no master. A caller that changes the
  /// masters must call write_back() afterwards.
  [[nodiscard]] std::vector<at::Tensor> of(const std::vector<at::Tensor>& parameters);
  void write_back(const std::vector<at::Tensor>& parameters);
  /// Attaches the masters of their parameters to the shards, if there are any. A shard of a part of a parameter gets
  /// the same range of the master, as [end - begin] elements in memory order. Call mark_stepped() after a fused step on
  /// the shards.
  void attach_masters(std::span<state::ParameterShard> parameter_shards);
  /// Must be called after the step has changed the masters and the parameters.
  void mark_stepped(std::span<const state::ParameterShard> parameter_shards);
  /// The same after the replay of a captured step. Parameters without a master are ignored.
  void mark_stepped(std::span<const at::Tensor> parameters);

 private:
  friend class MasterWeightScope;
  struct Entry {
    at::Tensor parameter;  // kept alive, so that no other tensor gets its address
    at::Tensor master;
    gradient::WriteStamp seen;  // of the parameter when it last equalled the rounded master
  };
  Entry* find(const void* key);
  Entry* find(const at::Tensor& parameter) { return find(parameter.unsafeGetTensorImpl()); }
  static const at::Tensor& current(Entry& entry);
  static void round(Entry& entry);

  std::unordered_map<const void*, Entry> entries_;
  std::unordered_set<const void*> handed_over_;
};

/// For an optimizer's own step. The constructor replaces the optimizer's parameters by their masters, with float32
/// gradients and the optimizer state. The destructor puts the parameters back and returns the state to them.
class MasterWeightScope {
 public:
  MasterWeightScope(torch::optim::Optimizer& optimizer, MasterWeights& masters);
  ~MasterWeightScope();
  MasterWeightScope(const MasterWeightScope&) = delete;
  MasterWeightScope& operator=(const MasterWeightScope&) = delete;
  /// Must be called after the step. Rounds the masters into the parameters.
  void write_back();

 private:
  struct Exchanged {
    at::Tensor* place;  // in a parameter group of the optimizer
    at::Tensor parameter;
    at::Tensor master;
  };
  void move_state(const at::Tensor& from, const at::Tensor& to);

  torch::optim::Optimizer& optimizer_;
  MasterWeights& masters_;
  std::vector<Exchanged> exchanged_;
};

}  // namespace accelerate::prepared
