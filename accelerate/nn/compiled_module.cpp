// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_module.hpp"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/ScalarType.h>
#include <fmt/format.h>

#include <ostream>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/nn/compiled_code.hpp"

namespace accelerate::nn {
namespace {

using compiled::TensorKind;
using compiled::TensorRow;

/// A level of the names of the Python module.
struct CompiledPartImpl : torch::nn::Module {
  CompiledPartImpl() : torch::nn::Module("CompiledPart") {}
};

/// Returns the module for "a.b.weight" and "weight", and creates missing levels.
std::pair<torch::nn::Module*, std::string> owner_of(torch::nn::Module& root, std::string name) {
  torch::nn::Module* owner = &root;
  for (auto dot = name.find('.'); dot != std::string::npos; dot = name.find('.')) {
    const std::string part = name.substr(0, dot);
    const auto children = owner->named_children();
    const auto* child = children.find(part);
    owner = child != nullptr ? child->get() : owner->register_module(part, std::make_shared<CompiledPartImpl>()).get();
    name.erase(0, dot + 1);
  }
  return {owner, name};
}

}  // namespace

CompiledPackage::CompiledPackage(const std::string& path, const CompiledOptions& options)
    : code_(std::make_shared<compiled::CompiledCode>(compiled::open_package(path, options.trusted))) {}

CompiledModule CompiledPackage::module() const { return CompiledModule(*this); }

CompiledModuleImpl::CompiledModuleImpl(const std::string& path, const CompiledOptions& options)
    : CompiledModuleImpl(CompiledPackage(path, options)) {}

CompiledModuleImpl::CompiledModuleImpl(const CompiledPackage& package)
    : torch::nn::Module("CompiledModule"), code_(package.code_) {
  for (const TensorRow& row : code_->record().tensors) {
    if (row.kind != TensorKind::input) add_tensor(row);
  }
}

void CompiledModuleImpl::add_tensor(const TensorRow& row) {
  const at::Tensor value = code_->initial_value(row);
  if (!row.persistent) {
    transient_.push_back(tensors_.size());
    tensors_.push_back(value);
    return;
  }
  const auto [owner, leaf] = owner_of(*this, row.name);
  // Handles: to() and load() change the content of a tensor, not its identity.
  tensors_.push_back(row.kind == TensorKind::parameter ? owner->register_parameter(leaf, value, row.requires_grad)
                                                       : owner->register_buffer(leaf, value));
}

at::Tensor CompiledModuleImpl::forward(const at::Tensor& first, const at::Tensor& second, const at::Tensor& third,
                                       const at::Tensor& fourth) {
  std::vector<at::Tensor> inputs{first};
  for (const at::Tensor* more : {&second, &third, &fourth}) {
    if (more->defined()) inputs.push_back(*more);
  }
  const size_t outputs = code_->record().outputs_require_grad.size();
  if (outputs != 1) {
    code_->origin().fail(ErrorKind::usage, "the module returns {} tensors; call forward_all()", outputs);
  }
  return forward_all(inputs).front();
}

std::vector<at::Tensor> CompiledModuleImpl::forward_all(const std::vector<at::Tensor>& inputs) {
  const size_t expected = code_->record().count(TensorKind::input);
  if (inputs.size() != expected) {
    code_->origin().fail(ErrorKind::usage, "forward was called with {} inputs, the package was compiled for {}",
                         inputs.size(), expected);
  }
  const c10::Device device = tensors_.front().device();
  for (const size_t i : transient_) tensors_[i] = tensors_[i].to(device);
  warn_about_autocast(device);
  compiled::CallTensors tensors = tensors_;
  tensors.insert(tensors.end(), inputs.begin(), inputs.end());
  return is_training() ? compiled::run_training(code_, tensors) : compiled::run_evaluation(code_, tensors);
}

// An fp16 package without fp16 mixed precision matters in training only: nothing scales the loss.
void CompiledModuleImpl::warn_about_autocast(c10::Device device) const {
  const std::string& exported = code_->record().autocast;
  const bool enabled = at::autocast::is_autocast_enabled(device.type());
  // A std::string_view in LibTorch 2.15.
  const std::string wanted(enabled ? c10::getDtypeNames(at::autocast::get_autocast_dtype(device.type())).first : "");
  if (wanted == exported) return;
  const auto warn = [&](const std::string& text) {
    base::log_once(base::LogLevel::warning, {}, "{}: {} was exported {}", code_->origin().operation,
                   code_->origin().path, text);
  };
  if (exported.empty()) {
    warn(
        fmt::format("without autocast, so it computes in the dtype of its parameters although mixed precision is {}; "
                    "export it with autocast=torch.{}",
                    wanted, wanted));
  } else if (enabled) {
    warn(
        fmt::format("with autocast=torch.{}, so it computes in {} although mixed precision is {}; export it with "
                    "autocast=torch.{}",
                    exported, exported, wanted, wanted));
  } else if (exported == "float16" && is_training() && at::GradMode::is_enabled()) {
    warn(
        "with autocast=torch.float16, and mixed precision is off, so small gradients become 0 unless the loss is "
        "scaled; set mixed_precision to fp16");
  }
}

const std::vector<std::string>& CompiledModuleImpl::aliases() const { return code_->record().aliases; }

std::shared_ptr<torch::nn::Module> CompiledModuleImpl::clone(const std::optional<torch::Device>& device) const {
  const at::NoGradGuard no_grad;
  auto copy = std::make_shared<CompiledModuleImpl>(CompiledPackage(code_));
  copy->to(device.value_or(tensors_.front().device()));
  for (size_t i = 0; i < tensors_.size(); ++i) {
    copy->tensors_[i].copy_(tensors_[i]);
    copy->tensors_[i].set_requires_grad(tensors_[i].requires_grad());
  }
  copy->train(is_training());
  return copy;
}

void CompiledModuleImpl::pretty_print(std::ostream& stream) const {
  stream << "accelerate::nn::CompiledModule(" << code_->origin().path << ", " << code_->record().device << ")";
}

}  // namespace accelerate::nn
