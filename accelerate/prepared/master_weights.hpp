// SPDX-License-Identifier: Apache-2.0
// float32 copies of parameters that are stored in bfloat16: what optimizers step on.
#pragma once

#include <ATen/core/Tensor.h>

#include <span>
#include <unordered_map>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/gradient/imprint.hpp"
#include "accelerate/gradient/named_tensor.hpp"
#include "accelerate/state/piece.hpp"

namespace torch::optim {
class Optimizer;
}

namespace accelerate::prepared {

/// A step that is smaller than half the distance of two bfloat16 numbers would be lost; in the master it adds up. After
/// each step the parameter is its master, rounded. What anybody else changes in it in place (loading, broadcasts) is
/// the master from then on; an element that is still, or again, what its master rounds to leaves the master as it is.
/// A write through data() is not counted as a change: it is seen on the CPU, where it changes the first 64 bytes, on
/// other devices not.
class MasterWeights {
 public:
  /// Copies the trainable parameters as they are, before they are cast.
  void keep(const std::vector<gradient::NamedTensor>& parameters);
  /// Rank 0's on all ranks, to be called when they have been cast. Collective.
  void make_equal(const comm::Group& group, const std::vector<gradient::NamedTensor>& parameters);
  [[nodiscard]] bool empty() const { return entries_.empty(); }
  [[nodiscard]] bool has(const at::Tensor& parameter) const {
    return entries_.contains(parameter.unsafeGetTensorImpl());
  }
  /// Its master becomes that value, [of the parameter's shape], and the parameter what it rounds to.
  void set(const at::Tensor& parameter, const at::Tensor& master);
  void clear() { entries_.clear(); }

  /// The parameters themselves where they have no master, else their masters, which the caller changes; write_back()
  /// then.
  [[nodiscard]] std::vector<at::Tensor> of(const std::vector<at::Tensor>& parameters);
  void write_back(const std::vector<at::Tensor>& parameters);
  /// Gives pieces the masters of their parameters, where there are any: of a range of a parameter that range, as
  /// [end - begin] elements in the order of memory. stepped_on() when a fused step has been made on them.
  void lend(std::span<state::Piece> pieces);
  /// The step has changed masters, and parameters with them.
  void stepped_on(std::span<const state::Piece> pieces);
  /// The same after the replay of a recorded step; parameters without a master are left alone.
  void stepped_on(std::span<const at::Tensor> parameters);

 private:
  friend class OnMasters;
  struct Entry {
    at::Tensor parameter;  // holds it, so that no other can have its address
    at::Tensor master;
    gradient::Imprint seen;  // of the parameter when it last was its master
  };
  Entry* find(const void* key);
  Entry* find(const at::Tensor& parameter) { return find(parameter.unsafeGetTensorImpl()); }
  static const at::Tensor& current(Entry& entry);
  static void round(Entry& entry);

  std::unordered_map<const void*, Entry> entries_;
};

/// For an optimizer's own step. While it lives its parameters are their masters, with float32 gradients; its state
/// belongs to the parameters again afterwards.
class OnMasters {
 public:
  OnMasters(torch::optim::Optimizer& optimizer, MasterWeights& masters);
  ~OnMasters();
  OnMasters(const OnMasters&) = delete;
  OnMasters& operator=(const OnMasters&) = delete;
  /// The step has been made.
  void write_back();

 private:
  struct Exchanged {
    at::Tensor* place;  // in a group of the optimizer's
    at::Tensor parameter;
    at::Tensor master;
  };
  void move_state(const at::Tensor& from, const at::Tensor& to);

  torch::optim::Optimizer& optimizer_;
  MasterWeights& masters_;
  std::vector<Exchanged> exchanged_;
};

}  // namespace accelerate::prepared
