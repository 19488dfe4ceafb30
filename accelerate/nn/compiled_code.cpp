// SPDX-License-Identifier: Apache-2.0
#include "accelerate/nn/compiled_code.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/DeviceGuard.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/inductor/aoti_package/model_package_loader.h>

#include <cstring>
#include <mutex>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "accelerate/base/log.hpp"
#include "accelerate/base/version_counter.hpp"
#include "accelerate/device/failed_allocation.hpp"
#include "accelerate/nn/compiled_host.hpp"
#include "accelerate/nn/compiled_layout.hpp"
#include "accelerate/units/gather_on_use.hpp"

namespace accelerate::nn::compiled {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// The graphs of a package on one device.
class LoadedGraphs {
 public:
  LoadedGraphs(const PackageFile& file, c10::Device device)
      : origin_(file.origin),
        device_(device),
        forward_(load(file, "forward", device)),
        backward_(load(file, "backward", device)) {
    if (file.record.evaluation) evaluate_ = load(file, "evaluate", device);
  }

  variable_list forward(variable_list tensors) { return run(*forward_, "forward", std::move(tensors)); }
  variable_list backward(variable_list tensors) { return run(*backward_, "backward", std::move(tensors)); }
  variable_list evaluate(variable_list tensors) { return run(*evaluate_, "evaluation", std::move(tensors)); }
  [[nodiscard]] c10::Device device() const { return device_; }

 private:
  using Loader = torch::inductor::AOTIModelPackageLoader;

  static std::unique_ptr<Loader> load(const PackageFile& file, const std::string& graph, c10::Device device) {
    static std::mutex mutex;  // LibTorch reads the metadata of all packages into one static object
    const std::lock_guard lock(mutex);
    check_unchanged(file);
    // "cpu" has no index.
    return std::make_unique<Loader>(file.resolved_path, graph, /*run_single_threaded=*/true, /*num_runners=*/1,
                                    device.is_cpu() ? c10::DeviceIndex{-1} : device.index());
  }

  variable_list run(Loader& graph, std::string_view name, variable_list tensors) {
    const std::lock_guard lock(mutex_);
    const c10::DeviceGuard guard(device_);
    // Autocast was traced into the graph, and autograd is this file's own node.
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    const device::FailedAllocation allocation;
    try {
      return graph.boxed_run(std::move(tensors));  // releases each tensor after its last use
    } catch (const std::runtime_error& error) {    // has no reason: the compiled code prints it
      allocation.rethrow();
      origin_.fail(ErrorKind::usage,
                   "the compiled {} failed; it printed the reason to stderr, such as an index outside of an embedding; "
                   "correct the inputs ({})",
                   name, error.what());
    }
  }

  archive::Origin origin_;
  c10::Device device_;
  std::mutex mutex_;
  std::unique_ptr<Loader> forward_, backward_, evaluate_;
};

namespace {

/// Keeps the code and the activations of one forward for its backward.
struct SavedForward : torch::CustomClassHolder {
  SavedForward(std::shared_ptr<CompiledCode> the_code, c10::Device the_device, size_t outputs)
      : code(std::move(the_code)), device(the_device), activations(outputs) {}
  std::shared_ptr<CompiledCode> code;
  c10::Device device;
  variable_list activations;        ///< by forward output; the module's own outputs are saved by autograd
  variable_list parameters{};       ///< the backward may read views of them, which autograd does not know
  std::vector<int64_t> versions{};  ///< of the parameters after the forward
  bool used = false;
};

/// Makes copies of buffers that the code writes to but cannot use in place, and writes the results back.
class MutatedBuffers {
 public:
  MutatedBuffers(const Record& record, const variable_list& given, const variable_list& fitting) {
    for (size_t i = 0; i < fitting.size(); ++i) {
      if (record.tensors[i].mutated) buffers_.emplace_back(given[i], fitting[i]);
    }
  }
  void finish() const {
    const at::NoGradGuard no_grad;
    for (const auto& [buffer, used] : buffers_) {
      if (!buffer.is_same(used)) {
        buffer.copy_(used);
      } else {
        base::count_write(buffer);  // compiled code writes past the version counter
      }
    }
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> buffers_;
};

std::string row_name(const TensorRow& row) {
  return (row.kind == TensorKind::parameter ? "parameter "
          : row.kind == TensorKind::buffer  ? "buffer "
                                            : "input ") +
         row.name;
}

variable_list fit_all(const CompiledCode& code, const variable_list& tensors) {
  const Record& record = code.record();
  std::vector<int64_t> sizes(record.symbols.size(), -1);
  const c10::Device device = tensors.front().device();
  variable_list fitting;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorRow& row = record.tensors[i];
    fitting.push_back(fit(tensors[i], row.layout, row_name(row), device, sizes, record, code.origin()));
  }
  return fitting;
}

struct TrainingStep : torch::autograd::Function<TrainingStep> {
  // Autograd finds tensors in a TensorList, but not in a vector.
  static variable_list forward(AutogradContext* context, const std::shared_ptr<CompiledCode>& code,
                               const MutatedBuffers& buffers, at::TensorList fitting) {
    const Record& record = code->record();
    const c10::Device device = fitting.front().device();
    variable_list outputs = code->on(device).forward(fitting.vec());
    buffers.finish();
    const size_t own = record.outputs_require_grad.size();
    auto saved = c10::make_intrusive<SavedForward>(code, device, outputs.size());
    for (size_t i = 0; i < record.count(TensorKind::parameter); ++i) {
      saved->parameters.push_back(fitting[i]);
      saved->versions.push_back(base::version_of(fitting[i]));
    }
    variable_list kept;
    for (const auto& [from, i] : record.takes) {
      if (from == From::input) kept.push_back(fitting[i]);
      if (from == From::output && i < own) kept.push_back(outputs[i]);
      if (from == From::output && i >= own) saved->activations[i] = outputs[i];
    }
    outputs.resize(own);
    variable_list constant;
    for (size_t i = 0; i < own; ++i) {
      if (!record.outputs_require_grad[i]) constant.push_back(outputs[i]);
    }
    context->mark_non_differentiable(constant);
    context->save_for_backward(std::move(kept));
    context->saved_data["forward"] = c10::IValue::make_capsule(std::move(saved));
    return outputs;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const auto saved = c10::static_intrusive_pointer_cast<SavedForward>(context->saved_data["forward"].toCapsule());
    const CompiledCode& code = *saved->code;
    const Record& record = code.record();
    if (at::GradMode::is_enabled()) {
      code.origin().fail(ErrorKind::usage,
                         "compiled code has no second derivative; call backward without create_graph");
    }
    if (saved->used) {
      code.origin().fail(ErrorKind::usage,
                         "backward ran a second time through one forward; call the first one with retain_graph");
    }
    for (size_t i = 0; i < saved->parameters.size(); ++i) {
      if (base::version_of(saved->parameters[i]) == saved->versions[i]) continue;
      code.origin().fail(ErrorKind::usage,
                         "{} was changed in place between forward and backward; step the optimizer after backward",
                         row_name(record.tensors[i]));
    }
    // The compiled backward overwrites activations ("donated buffers"), so a retained graph keeps the originals.
    const bool keep_graph = torch::autograd::get_current_graph_task_keep_graph();
    const variable_list variables = context->get_saved_variables();
    std::vector<int64_t> sizes(record.symbols.size(), -1);
    variable_list inputs;
    size_t variable = 0, gradient = 0;
    for (const auto& [from, i] : record.takes) {
      if (from == From::gradient) {
        inputs.push_back(fit(gradients[i], record.gradients[gradient++], fmt::format("the gradient of output {}", i),
                             saved->device, sizes, record, code.origin()));
      } else if (from == From::input || i < record.outputs_require_grad.size()) {
        inputs.push_back(variables[variable++]);
      } else {
        at::Tensor& activation = saved->activations[i];
        inputs.push_back(keep_graph ? copy_with_strides(activation, activation.strides()) : std::move(activation));
      }
    }
    saved->used = !keep_graph;
    gradients.clear();
    const units::HeldMemory held(saved->parameters);
    variable_list results = saved->code->on(saved->device).backward(std::move(inputs));
    constexpr size_t others = 2;  // arguments of forward() before the tensors
    variable_list all(others + record.tensors.size());
    for (size_t i = 0; i < results.size(); ++i) all[others + record.gives.at(i)] = std::move(results[i]);
    return all;
  }
};

struct EvaluationStep : torch::autograd::Function<EvaluationStep> {
  static variable_list forward(AutogradContext* context, const std::shared_ptr<CompiledCode>& code,
                               at::TensorList tensors) {
    context->saved_data["forward"] =
        c10::IValue::make_capsule(c10::make_intrusive<SavedForward>(code, tensors.front().device(), 0));
    return code->on(tensors.front().device()).evaluate(tensors.vec());
  }

  static variable_list backward(AutogradContext* context, const variable_list&) {
    const auto saved = c10::static_intrusive_pointer_cast<SavedForward>(context->saved_data["forward"].toCapsule());
    saved->code->origin().fail(ErrorKind::usage,
                               "the evaluation graph has no backward; call train() before the forward");
  }
};

void warn_about_threads(const Record& record, const archive::Origin& origin) {
  const int64_t here = at::get_num_threads();
  if (record.threads <= here) return;
  base::log_once(base::LogLevel::warning, {},
                 "{}: {} was compiled for {} threads and starts them in each process, although this process has {}; "
                 "export it with OMP_NUM_THREADS={}, or with options={{\"cpp.dynamic_threads\": True}}",
                 origin.operation, origin.path, record.threads, here, here);
}

void check_gradients(const CompiledCode& code, const variable_list& tensors) {
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorRow& row = code.record().tensors[i];
    if (tensors[i].requires_grad() && !row.requires_grad) {
      code.origin().fail(
          ErrorKind::usage,
          "{} requires a gradient, but did not at export, so no gradient was compiled; detach or freeze it, or "
          "export the module with requires_grad_()",
          row_name(row));
    }
  }
}

}  // namespace

CompiledCode::CompiledCode(PackageFile file) : file_(std::move(file)) {}
CompiledCode::~CompiledCode() = default;

at::Tensor CompiledCode::initial_value(const TensorRow& row) const {
  const auto options = at::TensorOptions(row.layout.dtype);
  at::Tensor value = at::empty(row.layout.shape, options);
  std::memcpy(value.mutable_data_ptr(), file_.weights.data() + row.offset, row.bytes);
  if (row.layout.stride == value.strides().vec()) return value;
  return at::empty_strided(row.layout.shape, row.layout.stride, options).copy_(value);
}

LoadedGraphs& CompiledCode::on(c10::Device device) {
  const std::lock_guard lock(mutex_);
  auto& graphs = loaded_[{device.type(), device.index()}];
  if (graphs == nullptr) {
    check_device(file_.record, device, properties_of(device), file_.origin);
    warn_about_threads(file_.record, file_.origin);
    graphs = std::make_unique<LoadedGraphs>(file_, device);
  }
  return *graphs;
}

variable_list run_training(const std::shared_ptr<CompiledCode>& code, const CallTensors& tensors) {
  if (at::GradMode::is_enabled()) check_gradients(*code, tensors);
  const units::HeldMemory held(tensors);
  variable_list fitting = fit_all(*code, tensors);
  const MutatedBuffers buffers(code->record(), tensors, fitting);
  if (at::GradMode::is_enabled()) return TrainingStep::apply(code, buffers, at::TensorList(fitting));
  const c10::Device device = fitting.front().device();
  variable_list outputs = code->on(device).forward(std::move(fitting));
  buffers.finish();
  outputs.resize(code->record().outputs_require_grad.size());
  return outputs;
}

variable_list run_evaluation(const std::shared_ptr<CompiledCode>& code, const CallTensors& tensors) {
  if (!code->record().evaluation) {
    code->origin().fail(
        ErrorKind::usage,
        "the package has no evaluation graph, and the training graph applies dropout and updates statistics; "
        "export the module with evaluation=True");
  }
  const units::HeldMemory held(tensors);
  const variable_list fitting = fit_all(*code, tensors);
  if (at::GradMode::is_enabled()) return EvaluationStep::apply(code, at::TensorList(fitting));
  return code->on(fitting.front().device()).evaluate(fitting);
}

}  // namespace accelerate::nn::compiled
