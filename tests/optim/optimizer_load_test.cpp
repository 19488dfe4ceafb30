// SPDX-License-Identifier: Apache-2.0
// The memory of an optimizer's state when another state is loaded.
#include "tests/testing.hpp"
//
#include <vector>

#include "accelerate/optim/optimizer_state.hpp"

using accelerate::RankContext;
using accelerate::optim::load_state;
using accelerate::optim::optimizer_state;
using accelerate::state::OptimizerState;
using torch::optim::Adam;
using torch::optim::AdamParamState;

namespace {

at::Tensor parameter_with_gradient(at::IntArrayRef sizes) {
  auto parameter = torch::randn(sizes, torch::requires_grad());
  parameter.mutable_grad() = torch::randn(sizes);
  return parameter;
}

AdamParamState& state_in(Adam& adam, const at::Tensor& parameter) {
  return static_cast<AdamParamState&>(*adam.state().at(parameter.unsafeGetTensorImpl()));
}

/// State of another optimizer after one step, with memory of its own.
OptimizerState other_state(at::IntArrayRef sizes) {
  Adam adam({parameter_with_gradient(sizes)}, 0.1);
  adam.step();
  return optimizer_state(adam, {});
}

const at::Tensor& saved_tensor(const OptimizerState& state, const std::string& name) {
  for (const auto& [own, tensor] : state.tensors.at(0)) {
    if (own == name) return tensor;
  }
  throw std::logic_error("the saved state has no " + name);
}

c10::ScalarType dtype_of(const at::Tensor& parameter) { return parameter.scalar_type(); }

}  // namespace

TEST_CASE("load_state() writes into the memory of the previous state") {
  const auto parameter = parameter_with_gradient({3, 4});
  Adam adam({parameter}, 0.1);
  adam.step();
  const void* const before = state_in(adam, parameter).exp_avg().const_data_ptr();
  const auto saved = other_state({3, 4});
  load_state(adam, saved, dtype_of, RankContext{});
  CHECK(state_in(adam, parameter).exp_avg().const_data_ptr() == before);
  CHECK(torch::equal(state_in(adam, parameter).exp_avg(), saved_tensor(saved, "exp_avg")));
  CHECK(torch::equal(state_in(adam, parameter).exp_avg_sq(), saved_tensor(saved, "exp_avg_sq")));
  CHECK(state_in(adam, parameter).step() == 1);
}

TEST_CASE("a tensor or view of the previous state that is still in use keeps its values") {
  for (const bool is_view : {false, true}) {
    const auto parameter = parameter_with_gradient({3, 4});
    Adam adam({parameter}, 0.1);
    adam.step();
    const at::Tensor& exp_avg = state_in(adam, parameter).exp_avg();
    const at::Tensor kept = is_view ? exp_avg[1] : exp_avg;
    const at::Tensor values = kept.clone();
    const auto saved = other_state({3, 4});
    load_state(adam, saved, dtype_of, RankContext{});
    CHECK(torch::equal(kept, values));
    CHECK(torch::equal(state_in(adam, parameter).exp_avg(), saved_tensor(saved, "exp_avg")));
  }
}

TEST_CASE("an optimizer loads its own state") {
  const auto parameter = parameter_with_gradient({3, 4});
  Adam adam({parameter}, 0.1);
  adam.step();
  const auto own = optimizer_state(adam, {});
  const at::Tensor values = saved_tensor(own, "exp_avg").clone();
  load_state(adam, own, dtype_of, RankContext{});
  CHECK(torch::equal(state_in(adam, parameter).exp_avg(), values));
}

TEST_CASE("a previous state with another dtype, layout or absent memory is replaced") {
  const auto saved = other_state({2, 3, 4, 5});
  const auto load_after = [&](const auto& change) {
    auto parameter = parameter_with_gradient({2, 3, 4, 5});
    Adam adam({parameter}, 0.1);
    adam.step();
    change(state_in(adam, parameter));
    load_state(adam, saved, dtype_of, RankContext{});
    const at::Tensor exp_avg = state_in(adam, parameter).exp_avg();
    CHECK(exp_avg.strides() == parameter.strides());
    CHECK((exp_avg.scalar_type() == torch::kFloat));
    CHECK(torch::equal(exp_avg, saved_tensor(saved, "exp_avg")));
  };
  load_after([](AdamParamState& state) { state.exp_avg(state.exp_avg().to(torch::kDouble)); });
  load_after(
      [](AdamParamState& state) { state.exp_avg(state.exp_avg().contiguous(torch::MemoryFormat::ChannelsLast)); });
  load_after([](AdamParamState& state) { state.exp_avg(torch::zeros({2})); });
  load_after([](AdamParamState& state) { state.exp_avg(at::Tensor()); });
  load_after([](AdamParamState& state) { state.exp_avg(torch::zeros({2, 3, 4, 5}).to_sparse()); });
  load_after([](AdamParamState& state) { state.exp_avg().storage().unsafeGetStorageImpl()->set_nbytes(0); });
}

TEST_CASE("a parameter without a saved state loses its previous one") {
  const auto first = parameter_with_gradient({3, 4}), second = parameter_with_gradient({2});
  Adam adam(std::vector<at::Tensor>{first, second}, 0.1);
  adam.step();
  auto saved = optimizer_state(adam, {});
  saved.tensors.erase(1);
  load_state(adam, saved, dtype_of, RankContext{});
  CHECK(adam.state().size() == 1);
  CHECK(adam.state().count(first.unsafeGetTensorImpl()) == 1);
}
