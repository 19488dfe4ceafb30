// SPDX-License-Identifier: Apache-2.0
// Only data parallelism, for programs that want nothing else of this library.
#pragma once

#include <utility>

#include "accelerate/accelerator.hpp"

namespace accelerate {

/// A module whose gradients are averaged over the ranks during every backward, with PyTorch's name and rules.
///
///   accelerate::DistributedDataParallel model(net);      // finds its peers from the environment, equal start
///   model(x).sum().backward();                           // gradients are the mean over the ranks
///
/// Any optimizer steps on them as they are, and nothing tells it that gradients are this rank's own: step only after a
/// synchronised backward, never on what ran under no_sync alone. (Optimizers prepared by an Accelerator refuse that.)
/// The connection closes with the object. Options as for Accelerator.
template <typename Module>
class DistributedDataParallel {
 public:
  template <prepared::AnyModule Model>
  // NOLINTNEXTLINE(bugprone-forwarding-reference-overload): AnyModule is not a DistributedDataParallel
  explicit DistributedDataParallel(Model&& model, const AcceleratorOptions& options = {})
      : accelerator_(options), model_(accelerator_.prepare_model(std::forward<Model>(model))) {}

  template <typename... Args>
  decltype(auto) operator()(Args&&... args) const {
    return model_(std::forward<Args>(args)...);
  }
  Module* operator->() const { return &*model_; }
  Module& operator*() const { return *model_; }
  [[nodiscard]] std::vector<at::Tensor> parameters() const { return model_.parameters(); }
  /// Backwards of forwards that run while it is open stay local and count in the next reduction.
  [[nodiscard]] prepared::NoSyncGuard no_sync() const { return accelerator_.no_sync(model_); }
  [[nodiscard]] const comm::Group& group() const { return accelerator_.group(); }
  [[nodiscard]] at::Device device() const { return accelerator_.device(); }

 private:
  Accelerator accelerator_;
  PreparedModel<Module> model_;
};

template <prepared::AnyModule Model>
DistributedDataParallel(Model&&) -> DistributedDataParallel<prepared::pointee_t<Model>>;
template <prepared::AnyModule Model>
DistributedDataParallel(Model&&, const AcceleratorOptions&) -> DistributedDataParallel<prepared::pointee_t<Model>>;

}  // namespace accelerate
