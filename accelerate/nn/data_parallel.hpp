// SPDX-License-Identifier: Apache-2.0
// Splits a batch over copies of a module on several devices of one process, which compute concurrently.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <tuple>
#include <typeinfo>
#include <utility>
#include <vector>

#include "accelerate/base/error.hpp"
#include "accelerate/nn/activation_checkpoint.hpp"
#include "accelerate/tree/tree.hpp"

namespace accelerate::nn {

namespace detail {

/// The part of DataParallel without the module's type.
class DataParallelCore {
 public:
  /// \throws Error (usage) without devices; Error (device) for a device that does not exist.
  DataParallelCore(std::vector<at::Device> devices, std::optional<at::Device> output_device, int64_t dim);

  /// Counts a tensor of the input; all tensors of one call must have equal sizes along dim.
  void count(const at::Tensor& tensor);
  /// Number of devices that receive a part of the counted input, at least one.
  [[nodiscard]] size_t parts() const;
  /// Part i on its device; a tensor without dimensions is copied to every device.
  [[nodiscard]] at::Tensor part_of(const at::Tensor& tensor, size_t i) const;
  void forget() { length_ = -1; }

  /// Sets the replica to the module's values on device i; gradients of its parameters flow to the module.
  /// \param replica  A module of the same class with its own tensors.
  void connect(const torch::nn::Module& module, torch::nn::Module& replica, size_t i) const;
  /// \throws Error (usage) if the module is not on the first device or, with several devices, contains a SyncBatchNorm
  ///         over ranks; on each rank, independent of the number of replicas.
  void check_place(const torch::nn::Module& module) const;
  /// Calls work(i) for each part concurrently, in threads that inherit the caller's gradient mode, autocast and current
  /// streams. \throws the first failure, with its device.
  void run(const std::function<void(size_t)>& work) const;

  [[nodiscard]] const std::vector<at::Device>& devices() const { return devices_; }
  [[nodiscard]] at::Device output_device() const { return output_device_; }
  [[nodiscard]] int64_t dim() const { return dim_; }

 private:
  std::vector<at::Device> devices_;
  at::Device output_device_;
  int64_t dim_;
  int64_t length_ = -1;
};

/// Calls make() and restores the state of the CPU generator, from which layers draw their initial values.
void without_drawing(const std::function<void()>& make);

/// Returns module->clone(device). \throws Error (usage) for a class without clone(), with both alternatives.
std::shared_ptr<torch::nn::Module> clone_of(const torch::nn::Module& module, at::Device device);
/// \param clone  Result of clone() of a base class of the module's class.
[[noreturn]] void throw_clone_of_other_class(const torch::nn::Module& module, const torch::nn::Module& clone);
[[noreturn]] void throw_null_clone();

}  // namespace detail

/// PyTorch's nn.DataParallel (torch/nn/parallel/data_parallel.py): forward splits its tensors along dim into parts as
/// torch.chunk does, passes each part to a replica on its device, and joins the outputs. Backward sums the replicas'
/// gradients in the module's own parameters. Equal to the module alone on the whole batch within rounding, except for
/// layers that use the whole batch: BatchNorm normalises each part.
///
///   accelerate::DataParallel parallel(net, {"cuda:0", "cuda:1"});
///   auto loss = torch::nll_loss(parallel(images), labels);                 // labels on the first device
///   loss.backward();                                                       // gradients in net's parameters
///
/// The module is on the first device and computes there itself: its buffers follow the first part, and changes of
/// replicas' buffers are dropped, as in PyTorch. Replicas are created for every forward and draw no random numbers. A
/// batch with fewer samples than devices leaves the last devices idle. Devices may repeat: {"cpu", "cpu"} are two
/// threads.
///
/// It is a module: prepare() accepts it, and ranks then reduce its gradients, which are sums over a rank's devices.
/// prepare() moves it to the rank's device, which must be its first device. Not thread-safe.
template <typename Net>
class DataParallel : public torch::nn::Module {
 public:
  using Factory = std::function<std::shared_ptr<Net>()>;

  /// \param module         Shared; on the first device.
  /// \param devices        At least one.
  /// \param output_device  Device of the joined outputs. If unset, the first device.
  /// \param dim            Dimension along which inputs are split and outputs joined.
  /// \param factory        Creates a module of the same class and layers; its values are ignored. If empty, replicas
  ///                       are clone()s, for which the class itself must derive from torch::nn::Cloneable<Class>.
  /// \throws Error (usage) for an empty module or without devices; Error (device) for a device that does not exist.
  explicit DataParallel(std::shared_ptr<Net> module, std::vector<at::Device> devices,
                        std::optional<at::Device> output_device = {}, int64_t dim = 0, Factory factory = {})
      : core_(std::move(devices), output_device, dim), module_(std::move(module)), factory_(std::move(factory)) {
    if (module_ == nullptr) base::fail(ErrorKind::usage, {}, "DataParallel", "the module is empty");
    register_module("module", module_);
  }
  template <typename Holder>
  requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, Holder>
  explicit DataParallel(const Holder& holder, std::vector<at::Device> devices,
                        std::optional<at::Device> output_device = {}, int64_t dim = 0, Factory factory = {})
      : DataParallel(holder.is_empty() ? nullptr : holder.ptr(), std::move(devices), output_device, dim,
                     std::move(factory)) {}

  /// \param inputs  Tensors [.., N, ..] with equal N along dim, and pairs, vectors, maps and structs of them; other
  ///                values, and tensors without dimensions, are passed to every device.
  /// \returns the replicas' outputs with the same structure, joined along dim; one number per device becomes a vector.
  /// \throws Error (usage) for tensors that differ along dim and for a SyncBatchNorm over several ranks; exceptions of
  ///         a replica with its device.
  template <typename... Inputs>
  auto forward(const Inputs&... inputs) {
    core_.check_place(*module_);
    core_.forget();
    (for_tensors(inputs, [&](const at::Tensor& tensor) { core_.count(tensor); }), ...);
    using Output = std::remove_cvref_t<decltype(module_->forward(inputs...))>;
    std::vector<std::tuple<Inputs...>> parts;
    std::vector<std::shared_ptr<Net>> copies;
    for (size_t i = 0; i < core_.parts(); ++i) {
      parts.emplace_back(part_of(inputs, i)...);
      copies.push_back(i == 0 ? module_ : copy_for(i));
    }
    std::vector<std::optional<Output>> outputs(parts.size());
    core_.run([&](size_t i) {
      const detail::FunctionsOwner owner(copies[i]);  // checkpoints keep the copy alive until their backward
      outputs[i].emplace(std::apply([&](const Inputs&... mine) { return copies[i]->forward(mine...); }, parts[i]));
    });
    return joined(outputs);
  }
  template <typename... Inputs>
  auto operator()(const Inputs&... inputs) {
    return forward(inputs...);
  }

  [[nodiscard]] const std::shared_ptr<Net>& module() const { return module_; }
  [[nodiscard]] const std::vector<at::Device>& devices() const { return core_.devices(); }

 private:
  template <typename Input, typename Function>
  static void for_tensors(const Input& input, Function&& function) {
    if constexpr (tree::holds_tensors<Input>) tree::for_each_tensor(input, std::forward<Function>(function));
  }
  template <typename Input>
  Input part_of(const Input& input, size_t i) const {
    if constexpr (tree::holds_tensors<Input>) {
      return tree::map(input, [&](const at::Tensor& tensor) { return core_.part_of(tensor, i); });
    } else {
      return input;
    }
  }
  std::shared_ptr<Net> copy_for(size_t i) const {
    const at::Device device = core_.devices()[i];
    std::shared_ptr<Net> copy;
    detail::without_drawing([&] { copy = factory_ ? factory_() : cloned(device); });
    if (copy == nullptr) detail::throw_null_clone();
    core_.connect(*module_, *copy, i);
    return copy;
  }
  std::shared_ptr<Net> cloned(at::Device device) const {
    const auto clone = detail::clone_of(*module_, device);
    const auto& made = *clone;
    const auto& original = *module_;
    if (typeid(made) != typeid(original)) detail::throw_clone_of_other_class(original, made);
    return std::dynamic_pointer_cast<Net>(clone);
  }
  template <typename Output>
  Output joined(std::vector<std::optional<Output>>& outputs) const {
    static_assert(tree::holds_tensors<Output>, "accelerate::DataParallel: the module's forward returns no tensor");
    std::vector<Output> there;
    for (auto& output : outputs) there.push_back(tree::to(*output, core_.output_device()));
    return tree::concat(there, core_.dim());
  }

  detail::DataParallelCore core_;
  std::shared_ptr<Net> module_;
  Factory factory_;
};

template <typename Holder>
requires std::is_base_of_v<torch::detail::ModuleHolderIndicator, Holder> DataParallel(
    const Holder&, std::vector<at::Device>, std::optional<at::Device> = {}, int64_t = 0,
    std::function<std::shared_ptr<typename Holder::ContainedType>()> = {})
->DataParallel<typename Holder::ContainedType>;

}  // namespace accelerate::nn

namespace accelerate {
using nn::DataParallel;
}
