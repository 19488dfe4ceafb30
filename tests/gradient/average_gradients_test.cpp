// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/average_gradients.hpp"

#include "tests/testing.hpp"
//
#include <cstdint>
#include <vector>

#include "accelerate/comm/group.hpp"

namespace {

using accelerate::comm::Group;
using accelerate::gradient::NamedTensor;

std::vector<NamedTensor> parameters_of_dtypes() {
  std::vector<NamedTensor> all;
  for (const auto dtype : {at::kFloat, at::kDouble, at::kBFloat16, at::kComplexDouble}) {
    all.push_back({"a", torch::zeros({2, 3}, dtype).requires_grad_()});
    all.push_back({"b", torch::zeros({}, dtype).requires_grad_()});
    all.push_back({"c", torch::zeros({0, 2}, dtype).requires_grad_()});
  }
  return all;
}

TEST_CASE("gradients of every dtype become their mean over the ranks, in buckets of any size") {
  for (const int64_t ranks : {1, 2, 3, 4}) {
    for (const int64_t cap : {1, 40, 25 << 20}) {
      accelerate::comm::run_threads(ranks, [&](const Group& group) {
        const auto parameters = parameters_of_dtypes();
        for (const auto& [name, parameter] : parameters) {
          parameter.mutable_grad() = torch::full_like(parameter.detach(), static_cast<double>(group.rank() + 1));
        }
        accelerate::gradient::average_gradients(group, parameters, {}, cap);
        const double mean = static_cast<double>(ranks + 1) / 2;
        for (const auto& [name, parameter] : parameters) {
          CHECK(parameter.grad().sizes() == parameter.sizes());
          CHECK(torch::allclose(parameter.grad(), torch::full_like(parameter.detach(), mean)));
        }
      });
    }
  }
}

TEST_CASE("a gradient of one rank is averaged with zeros of the others, and an unused one stays undefined") {
  accelerate::comm::run_threads(4, [](const Group& group) {
    const auto parameter = [] { return torch::zeros({3}, at::kDouble).requires_grad_(); };
    const std::vector<NamedTensor> parameters{{"one", parameter()}, {"none", parameter()}, {"all", parameter()}};
    if (group.rank() == 2) parameters[0].tensor.mutable_grad() = torch::full({3}, 4.0, at::kDouble);
    parameters[2].tensor.mutable_grad() = torch::full({3}, 2.0, at::kDouble);
    const at::Tensor kept = parameters[2].tensor.grad();
    accelerate::gradient::average_gradients(group, parameters, {parameters[1].tensor.unsafeGetTensorImpl()});
    CHECK(parameters[0].tensor.grad().equal(torch::ones({3}, at::kDouble)));
    CHECK(!parameters[1].tensor.grad().defined());
    CHECK(parameters[2].tensor.grad().is_same(kept));
    CHECK(kept.equal(torch::full({3}, 2.0, at::kDouble)));
  });
}

TEST_CASE("frozen parameters are skipped, duplicates count once, and channels_last is kept") {
  accelerate::comm::run_threads(2, [](const Group& group) {
    const auto frozen = torch::zeros({2}, at::kDouble);
    const auto shared = torch::zeros({1, 2, 2, 2}, at::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
    shared.set_requires_grad(true);
    const auto values = torch::arange(8, at::kDouble).reshape({1, 2, 2, 2}) * (group.rank() + 1);
    shared.mutable_grad() = values.contiguous(at::MemoryFormat::ChannelsLast);
    accelerate::gradient::average_gradients(group, {{"frozen", frozen}, {"shared", shared}, {"again", shared}});
    CHECK(!frozen.grad().defined());
    CHECK(shared.grad().equal(torch::arange(8, at::kDouble).reshape({1, 2, 2, 2}) * 1.5));
    CHECK(shared.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
  });
}

}  // namespace
