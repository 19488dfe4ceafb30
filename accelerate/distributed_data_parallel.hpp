// SPDX-License-Identifier: Apache-2.0
// Data parallelism only, for programs that need no other part of this library.
#pragma once

#include <utility>

#include "accelerate/accelerator.hpp"

namespace accelerate {

/// Wraps a module for data parallelism: every backward averages its gradients over the ranks. Name and semantics are
/// those of PyTorch's DistributedDataParallel.
///
///   accelerate::DistributedDataParallel model(net);      // joins the group and broadcasts rank 0's parameters
///   model(x).sum().backward();                           // gradients are the mean over the ranks
///
/// Any optimizer can be used. Because it cannot detect local gradients, step only after a synchronised backward, never
/// after backwards that all ran under no_sync(). (Optimizers prepared by an Accelerator throw an error in this case.)
/// The destructor leaves the process group. The options are those of an Accelerator. Not thread-safe.
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
  /// While the guard is alive, gradients stay local. They are included in the next reduction.
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
