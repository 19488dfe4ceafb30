// SPDX-License-Identifier: Apache-2.0
// Master weights of parameter shards; tests/accelerator/master_weights_test.cpp tests them in training.
#include "accelerate/prepared/master_weights.hpp"

#include "tests/testing.hpp"
//
#include "accelerate/optim/fused_step.hpp"

using accelerate::prepared::MasterWeights;
using accelerate::state::ParameterShard;

namespace {

// 24 numbers from 1 to 1.5 in the shape of a convolution, optionally in channels-last memory order.
at::Tensor parameter_near_one(c10::MemoryFormat format) {
  const at::NoGradGuard no_grad;
  const auto numbers = torch::linspace(1.0, 1.5, 24).reshape({2, 3, 2, 2}).to(at::kBFloat16);
  return numbers.contiguous(format).requires_grad_();
}

// A rank's shard of it: a view of the parameter's memory.
ParameterShard range_of(const at::Tensor& parameter, int64_t begin, int64_t end, double gradient) {
  const auto value = parameter.detach().as_strided({end - begin}, {1}, begin);
  return {.name = "w",
          .sizes = parameter.sizes().vec(),
          .begin = begin,
          .end = end,
          .key = parameter.unsafeGetTensorImpl(),
          .value = value,
          .gradient = torch::full({end - begin}, gradient, at::kBFloat16)};
}

}  // namespace

TEST_CASE("a range of a parameter steps in the same range of its master, and the rest does not change") {
  for (const auto format : {c10::MemoryFormat::Contiguous, c10::MemoryFormat::ChannelsLast}) {
    const at::Tensor parameter = parameter_near_one(format);
    const at::Tensor before = parameter.detach().clone();
    MasterWeights masters;
    masters.keep({{"w", parameter}});
    torch::optim::SGD sgd({parameter}, torch::optim::SGDOptions(1.0));
    auto fused = accelerate::optim::FusedStep::for_optimizer(sgd);
    for (int step = 0; step < 100; ++step) {
      std::vector<ParameterShard> parameter_shards{range_of(parameter, 5, 12, 0.0001)};
      masters.attach_masters(parameter_shards);
      REQUIRE(parameter_shards[0].master.sizes() == at::IntArrayRef({7}));
      REQUIRE(fused->step(parameter_shards));
      masters.mark_stepped(parameter_shards);
    }
    const auto in_memory = [](const at::Tensor& tensor) { return tensor.detach().as_strided({24}, {1}, 0); };
    const at::Tensor master = masters.of({parameter})[0];
    const double rate = torch::full({}, 0.0001, at::kBFloat16).item<double>();
    auto expected = in_memory(before).to(at::kDouble);
    expected.narrow(0, 5, 7).sub_(100 * rate);
    CHECK(torch::allclose(in_memory(master).to(at::kDouble), expected, 0, 1e-5));
    CHECK(torch::equal(in_memory(parameter), in_memory(master).to(at::kBFloat16)));
    CHECK_FALSE(torch::equal(parameter.detach(), before));
  }
}

TEST_CASE("a whole parameter shard gets its master, one of an unknown parameter none") {
  const at::Tensor parameter = parameter_near_one(c10::MemoryFormat::Contiguous);
  const at::Tensor other = torch::ones({3}, torch::requires_grad());
  MasterWeights masters;
  masters.keep({{"w", parameter}});
  std::vector<ParameterShard> parameter_shards{accelerate::state::whole_parameter("w", parameter),
                                               accelerate::state::whole_parameter("other", other)};
  masters.attach_masters(parameter_shards);
  CHECK(parameter_shards[0].master.is_same(masters.of({parameter})[0]));
  CHECK_FALSE(parameter_shards[1].master.defined());
}
