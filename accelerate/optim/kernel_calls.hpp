// SPDX-License-Identifier: Apache-2.0
// Private: arguments of the fused kernels.
#pragma once

#include <ATen/ops/_foreach_add.h>
#include <ATen/ops/_foreach_sub.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <torch/optim/optimizer.h>

#include <deque>
#include <unordered_map>
#include <vector>

namespace accelerate::optim {

// Arguments of one kernel call: tensors of one parameter group, dtype, device and step count. Lists keep their
// capacity, so that repeated steps do not allocate.
struct Call {
  size_t group;
  at::ScalarType dtype;
  at::Device device;
  int64_t step;
  // Parameters and companions of the same layout; first, second and maxima are the optimizer's state.
  std::vector<at::Tensor> parameters{}, gradients{}, first{}, second{}, maxima{}, steps{};
  std::vector<torch::optim::OptimizerParamState*> states{};
  std::vector<void*> keys{};  ///< keys of the states
  // If `parameters` are masters: the masters, and the values that are set from them.
  std::vector<at::Tensor> masters{}, values{};
  // Gradients in the parameters' dtype, and the elements of `gradients` to which they are converted.
  std::vector<at::Tensor> narrow_gradients{}, wide_gradients{};
  at::Tensor step_tensor{};
  /// For a captured step: memory from which the kernel reads its rate. If undefined, the option's value is used.
  at::Tensor rate{};

  bool takes(size_t the_group, const at::Tensor& parameter, int64_t count) const {
    return the_group == group && count == step && parameter.scalar_type() == dtype && parameter.device() == device;
  }
  void clear() {
    for (auto* list : {&parameters, &gradients, &first, &second, &maxima, &steps, &masters, &values, &narrow_gradients,
                       &wide_gradients}) {
      list->clear();
    }
    states.clear();
    keys.clear();
    if (rate.defined()) step_tensor.reset();  // the recording also owns this tensor
    rate.reset();
  }
};

class Calls {
 public:
  Call& of(size_t group, const at::Tensor& parameter, int64_t step) {
    for (size_t i = 0; i < used_; ++i) {
      if (calls_[i].takes(group, parameter, step)) return calls_[i];
    }
    if (used_ == calls_.size()) calls_.push_back({group, parameter.scalar_type(), parameter.device(), step});
    Call& call = calls_[used_++];
    if (call.device != parameter.device()) call.step_tensor.reset();
    call.group = group;
    call.dtype = parameter.scalar_type();
    call.device = parameter.device();
    call.step = step;
    return call;
  }
  template <typename Run>
  void run(const Run& kernel) {
    for (size_t i = 0; i < used_; ++i) kernel(calls_[i]);
    clear();
  }
  // The lists must not keep gradients alive.
  void clear() {
    for (Call& call : calls_) call.clear();
    used_ = 0;
  }

 private:
  std::deque<Call> calls_;  // a deque keeps references valid
  size_t used_ = 0;
};

// The kernels read the step count from one float per parameter. They only read, so all share one.
inline void fill_steps(Call& call) {
  if (!call.step_tensor.defined()) call.step_tensor = at::empty({}, at::TensorOptions(call.device).dtype(at::kFloat));
  const bool recorded = call.rate.defined();  // then it is written before each replay
  if (!recorded && call.device.is_cpu()) {
    *call.step_tensor.data_ptr<float>() = static_cast<float>(call.step);
  } else if (!recorded) {
    call.step_tensor.fill_(static_cast<double>(call.step));
  }
  call.steps.assign(call.parameters.size(), call.step_tensor);
}

// Steps that flags on a device have cancelled, per parameter: the host counts on until discard_skipped_steps().
class SkippedSteps {
 public:
  // Step count passed to the kernels: without cancelled steps.
  void correct(Call& call) const {
    if (counts_.empty()) return;
    std::vector<at::Tensor> counts;
    for (size_t i = 0; i < call.steps.size(); ++i) {
      const auto found = counts_.find(call.keys[i]);
      const bool known = found != counts_.end() && found->second.of == call.states[i];
      counts.push_back(known ? found->second.count : at::zeros({}, call.step_tensor.options()));
    }
    call.steps = at::_foreach_sub(call.steps, counts);
  }
  // Whether there are counts to go on with.
  bool knows(const Call& call) const {
    for (size_t i = 0; i < call.states.size(); ++i) {
      const auto found = counts_.find(call.keys[i]);
      if (found == counts_.end() || found->second.of != call.states[i]) return false;
    }
    return true;
  }
  void note(const Call& call, const at::Tensor& skip) {
    std::vector<at::Tensor> counts;
    for (size_t i = 0; i < call.states.size(); ++i) {
      Count& count = counts_[call.keys[i]];
      // State that was loaded since has other counts.
      if (count.of != call.states[i]) count = {call.states[i], at::zeros({}, skip.options())};
      counts.push_back(count.count);
    }
    at::_foreach_add_(counts, skip);
  }
  template <typename State>
  void take_back(torch::optim::Optimizer& optimizer) {
    for (const auto& [key, count] : counts_) {
      const auto found = optimizer.state().find(key);
      if (found == optimizer.state().end() || found->second.get() != count.of) continue;
      auto& of_parameter = static_cast<State&>(*found->second);
      of_parameter.step(of_parameter.step() - count.count.template item<int64_t>());
      count.count.zero_();  // in place, because recorded steps continue to count in this tensor
    }
  }
  std::vector<at::Tensor> counts_of(const Call& call) const {
    std::vector<at::Tensor> counts;
    for (void* key : call.keys) {
      if (const auto found = counts_.find(key); found != counts_.end()) counts.push_back(found->second.count);
    }
    return counts;
  }

 private:
  struct Count {
    const torch::optim::OptimizerParamState* of = nullptr;
    at::Tensor count{};
  };
  std::unordered_map<void*, Count> counts_;  // by key of the state
};

// Clears the lists after a step that threw, because the next step must not contain its entries.
struct ClearedAtEnd {
  Calls& calls;
  ~ClearedAtEnd() { calls.clear(); }
};

}  // namespace accelerate::optim
