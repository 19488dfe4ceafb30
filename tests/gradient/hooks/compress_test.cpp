// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"
//

using namespace gradient_testing;

namespace {

at::Tensor mean_over(int64_t ranks, const std::function<at::Tensor(int64_t)>& of_rank) {
  at::Tensor sum = of_rank(0);
  for (int64_t rank = 1; rank < ranks; ++rank) sum = sum + of_rank(rank);
  return sum / static_cast<double>(ranks);
}

}  // namespace

TEST_CASE("16-bit gradients are the mean within their precision, equal on all ranks, at half the bytes") {
  const auto gradient = [](int64_t rank) { return numbers({40, 20}, rank, at::kFloat); };
  run_threads(3, [&](const Group& group) {
    Hooked plain(group, {{40, 20}}, {}, at::kFloat);
    plain.reduced({gradient(group.rank())});
    const at::Tensor expected = mean_over(3, gradient);
    for (const auto& [hook, tolerance] : {std::pair(fp16_compress_hook(), 1e-3), {bf16_compress_hook(), 1e-2}}) {
      Hooked hooked(group, {{40, 20}}, hook, at::kFloat);
      const auto seen = hooked.reduced({gradient(group.rank())});
      CHECK(near(seen[0], expected, tolerance));
      CHECK_FALSE(torch::equal(seen[0], plain.parameters[0].grad()));
      CHECK(bit_equal(group, seen));
      CHECK(hooked.gradient_reducer.bytes_communicated() * 2 == plain.gradient_reducer.bytes_communicated());
    }
  });
}

TEST_CASE("gradients are divided before compression: float16 overflows only if the mean does") {
  run_threads(2, [](const Group& group) {
    Hooked hooked(group, {{4}}, fp16_compress_hook(), at::kFloat);
    CHECK(torch::equal(hooked.reduced({torch::full({4}, 60000.0F)})[0], torch::full({4}, 60000.0F)));
    CHECK(hooked.reduced({torch::full({4}, 70000.0F)})[0].isinf().all().item<bool>());
    Hooked wide(group, {{4}}, bf16_compress_hook(), at::kFloat);
    CHECK(near(wide.reduced({torch::full({4}, 70000.0F)})[0], torch::full({4}, 70000.0F), 1e-2));
  });
}

TEST_CASE("bfloat16 parameters are sent unchanged, bit for bit") {
  run_threads(2, [](const Group& group) {
    const auto gradient = numbers({9}, group.rank(), at::kBFloat16);
    Hooked plain(group, {{9}}, {}, at::kBFloat16);
    Hooked hooked(group, {{9}}, fp16_compress_hook(), at::kBFloat16);
    CHECK(torch::equal(hooked.reduced({gradient})[0], plain.reduced({gradient})[0]));
  });
}

TEST_CASE("parameters that some ranks or none used are reduced with compression as without") {
  run_threads(2, [](const Group& group) {
    Hooked hooked(group, {{3}, {5}, {2}}, bf16_compress_hook(), at::kFloat);
    for (int round = 0; round < 3; ++round) {
      const auto ones = torch::ones({3});
      const auto seen = hooked.reduced({ones, group.rank() == 1 ? torch::full({5}, 4.0F) : at::Tensor(), {}});
      CHECK(torch::equal(seen[0], ones));
      CHECK(torch::equal(seen[1], torch::full({5}, 2.0F)));
      CHECK_FALSE(seen[2].defined());
    }
  });
}
