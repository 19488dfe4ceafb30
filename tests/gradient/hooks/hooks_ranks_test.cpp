// SPDX-License-Identifier: Apache-2.0
// Hooks between processes, on every CPU backend.
#include "support.hpp"
//
#include "tests/world.hpp"

using namespace gradient_testing;

TEST_CASE("hooks compute the mean within their precision, with the same bits on every rank in every step") {
  const Group& group = testing::world();
  const PowerSgdOptions exact{.matrix_approximation_rank = group.size(), .start_step = 2};
  // 64 is at least the rank of a bucket's square matrix
  const PowerSgdOptions full{.matrix_approximation_rank = 64, .start_step = 2};
  // Gradients of rank one, for which a warm start in 16 bits is exact up to 16-bit rounding.
  const auto gradient = [](int64_t rank, int64_t step) {
    return (low_rank(40, 20, 1, 3 * rank) * static_cast<double>(step + 1)).to(at::kFloat);
  };
  const std::vector<std::pair<CommHook, double>> hooks{
      {fp16_compress_hook(), 0.001},
      {bf16_compress_hook(), 0.01},
      {power_sgd_hook(exact), 1e-5},
      {bf16_compress_wrapper(power_sgd_hook(exact)), 0.06},  // all arithmetic has 8 bits of precision, as in PyTorch
      {fp16_compress_wrapper({}), 0.001},
      {batched_power_sgd_hook(full), 1e-4},
      {fp16_compress_wrapper(batched_power_sgd_hook(full)), 0.01},
      {bf16_compress_wrapper(batched_power_sgd_hook(full)), 0.06},
      {comm_hook([](const GradientBucket& bucket, const Group& own) {
         own.all_reduce(bucket.gradients);
         return bucket.gradients;
       }),
       1e-6}};
  for (const auto& [hook, tolerance] : hooks) {
    Hooked hooked(group, {{40, 20}, {40, 20}, {5}}, hook, at::kFloat);
    for (int64_t step = 0; step < 4; ++step) {
      at::Tensor mean = torch::zeros({40, 20});
      for (int64_t rank = 0; rank < group.size(); ++rank) mean += gradient(rank, step) / group.size();
      const at::Tensor mine = gradient(group.rank(), step);
      const auto seen = hooked.reduced({mine, group.rank() == 0 ? mine : at::Tensor(), {}});
      CHECK((seen[0] - mean).norm().item<double>() < tolerance * mean.norm().item<double>());
      CHECK(seen[1].defined());
      CHECK_FALSE(seen[2].defined());
      CHECK(bit_equal(group, {seen[0], seen[1]}));
    }
  }
}
