// SPDX-License-Identifier: Apache-2.0
// Builds modules without memory for their parameters and buffers.
#pragma once

#include <functional>
#include <utility>

namespace at {
class Tensor;
}
namespace torch::nn {
class Module;
}

namespace accelerate {

namespace deferred {

/// While it exists, tensors that this thread fills get no memory. Scopes may be nested.
class DeferralScope {
 public:
  DeferralScope();
  DeferralScope(const DeferralScope&) = delete;
  DeferralScope& operator=(const DeferralScope&) = delete;
  ~DeferralScope();

 private:
  bool was_deferring_;
};

}  // namespace deferred

/// Runs a function that builds modules, without memory for the tensors that it fills on the CPU.
///
/// Fills with constants and random numbers, arithmetic with numbers, clones and changes of the dtype and device are
/// recorded. An operator that needs the values computes them first, so the values are always those of a build without
/// this function. Random numbers are drawn during the build and discarded, so that the generator ends in the same
/// state. Other threads are not affected.
///
/// prepare() gives all parameters and buffers memory, with full_shard one unit at a time. Call it after this function
/// returned. Before, an operator that needs the values of a tensor gives it memory. Tensor::data_ptr() and
/// torch::save() are no operators and throw a c10::Error; call materialize() before. A pointer obtained before a fill
/// is invalid after it.
/// \param build  Called once, without arguments.
/// \returns      The result of `build`.
/// \throws Error (environment) if another library in this process uses the dispatch key DeferredInit. Exceptions of
///         `build` are passed on.
template <typename Build>
decltype(auto) init_empty_weights(Build&& build) {
  const deferred::DeferralScope scope;
  return std::invoke(std::forward<Build>(build));
}

/// Gives all parameters and buffers of a module that init_empty_weights() built memory and their values. Others are not
/// changed. Not collective. Thread-safe.
void materialize(const torch::nn::Module& module);
/// The same for one tensor, such as a member of a module that is not registered.
void materialize(const at::Tensor& tensor);

}  // namespace accelerate
