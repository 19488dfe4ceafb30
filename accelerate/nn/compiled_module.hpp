// SPDX-License-Identifier: Apache-2.0
// Modules with a forward and backward that tools/export_compiled.py compiled in Python.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <torch/nn/module.h>
#include <torch/nn/modules/common.h>
#include <torch/nn/modules/container/any_value.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace accelerate::nn {

namespace compiled {
class CompiledCode;
struct TensorRow;
}  // namespace compiled

struct CompiledOptions {
  /// True if the origin of the file is known: loading a package executes machine code. If false, a file outside the
  /// folder of the program is loaded with a warning, and a file that every user can write is an error.
  bool trusted = false;
};

class CompiledModule;

/// The compiled code of one file, from which several modules can be made, for example the blocks of a network. They
/// share the code, and each has its own parameters. Copies refer to the same code. Thread-safe.
class CompiledPackage {
 public:
  /// Verifies the file. The code is loaded by the first forward, for the device of the parameters.
  ///
  /// \param path  File of tools/export_compiled.py. It must not change while the package is in use; a change
  ///              before the first forward on a device is an error.
  /// \throws Error (io) if the file cannot be opened, (data) if it is damaged or of another program, (usage) if every
  ///         user can write it, (environment) if it was compiled for another version of LibTorch or processor.
  explicit CompiledPackage(const std::string& path, const CompiledOptions& options = {});

  /// Returns a new module with the initial values of the file, on the CPU.
  [[nodiscard]] CompiledModule module() const;

 private:
  friend class CompiledModuleImpl;
  explicit CompiledPackage(std::shared_ptr<compiled::CompiledCode> code) : code_(std::move(code)) {}
  std::shared_ptr<compiled::CompiledCode> code_;
};

/// A torch::nn module that runs compiled code. Parameters and buffers have the names, initial values and requires_grad
/// of the Python module, on the CPU; to() and prepare() move them to the device of the export. Optimizers, data
/// parallelism, checkpoints and moving averages treat it as any module.
///
///   accelerate::nn::CompiledModule net("net.pt2");
///   torch::optim::AdamW adamw(net->parameters(), 1e-4);
///   auto [model, optimizer, loader] = accelerator.prepare(net, adamw, data);
///   auto loss = torch::mse_loss(model(batch.data), batch.target);
///
/// train() and eval() of the module itself select the compiled training or evaluation graph; the mode of a child has no
/// effect. Autocast has no effect, because the dtypes were fixed at export. Tied weights appear under the first name.
///
/// Not thread-safe, as every module. Modules of one package may be used by different threads.
class CompiledModuleImpl : public torch::nn::Module {
 public:
  /// Same parameters and errors as CompiledPackage.
  explicit CompiledModuleImpl(const std::string& path, const CompiledOptions& options = {});
  explicit CompiledModuleImpl(const CompiledPackage& package);

  /// Runs the module with 1 to 4 inputs; omitted inputs are undefined tensors. For more inputs or several outputs use
  /// forward_all().
  ///
  /// Inputs have the dtype and shape of the export; other strides are copied. In training mode with gradients enabled,
  /// outputs have a backward that supports retain_graph. In evaluation mode a backward is an error.
  ///
  /// \returns the only output, on the device of the parameters.
  /// \throws Error (usage) for another number of inputs, another dtype, shape or device, an input or parameter that
  ///         requires a gradient but did not at export, several outputs, and in evaluation mode without an evaluation
  ///         graph; (environment) if the code was compiled for another device type or GPU.
  at::Tensor forward(const at::Tensor& first, const at::Tensor& second = {}, const at::Tensor& third = {},
                     const at::Tensor& fourth = {});

  /// Runs the module with any number of inputs. Errors are those of forward().
  /// \returns the outputs in the order of the Python module.
  std::vector<at::Tensor> forward_all(const std::vector<at::Tensor>& inputs);

  /// Further names that tied weights have in Python: "head.weight = embedding.weight".
  [[nodiscard]] const std::vector<std::string>& aliases() const;

  /// Returns a module of the same package with copies of all values, as DataParallel needs.
  [[nodiscard]] std::shared_ptr<torch::nn::Module> clone(
      const std::optional<torch::Device>& device = std::nullopt) const override;
  void pretty_print(std::ostream& stream) const override;

 protected:
  FORWARD_HAS_DEFAULT_ARGS({1, torch::nn::AnyValue(at::Tensor())}, {2, torch::nn::AnyValue(at::Tensor())},
                           {3, torch::nn::AnyValue(at::Tensor())})

 private:
  void add_tensor(const compiled::TensorRow& row);
  void warn_about_autocast(c10::Device device) const;

  std::shared_ptr<compiled::CompiledCode> code_;
  std::vector<at::Tensor> tensors_;  ///< parameters and buffers in the order of the compiled code
  std::vector<size_t> transient_;    ///< positions of buffers that are not part of state_dict in Python
};

/// Holder: `accelerate::nn::CompiledModule net("net.pt2", {.trusted = true});`
class CompiledModule : public torch::nn::ModuleHolder<CompiledModuleImpl> {
 public:
  using torch::nn::ModuleHolder<CompiledModuleImpl>::ModuleHolder;
  using Impl = CompiledModuleImpl;
  CompiledModule(const std::string& path, const CompiledOptions& options)
      : ModuleHolder(std::make_shared<CompiledModuleImpl>(path, options)) {}
};

}  // namespace accelerate::nn
