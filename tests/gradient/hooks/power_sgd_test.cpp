// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"
//
#include <limits>

using namespace gradient_testing;

namespace {

PowerSgdOptions from_step(int64_t start, int64_t rank = 1) {
  return {.matrix_approximation_rank = rank, .start_step = start};
}

// 300 steps of gradient descent on |W - target_of_this_rank|^2; the mean of the targets has many singular values.
double distance_after_training(const CommHook& hook) {
  double left = 0;
  run_threads(2, [&](const Group& group) {
    const auto target = [](int64_t rank) { return numbers({24, 16}, 50 + rank); };
    Hooked hooked(group, {{24, 16}}, hook);
    const at::Tensor& weight = hooked.parameters[0];
    for (int step = 0; step < 300; ++step) {
      const auto gradient = hooked.reduced({weight.detach() - target(group.rank())})[0];
      weight.detach().sub_(gradient, 0.05);
    }
    if (group.rank() == 0) left = (weight.detach() - (target(0) + target(1)) / 2).norm().item<double>();
  });
  return left;
}

// Compares one reduction of 40 x 20 numbers that differ on two ranks with the plain mean.
void check_within(double tolerance, const CommHook& hook, bool with_factors) {
  run_threads(2, [&](const Group& group) {
    CAPTURE(tolerance);
    CAPTURE(with_factors);
    const auto gradient = numbers({40, 20}, group.rank(), at::kFloat);
    Hooked plain(group, {{40, 20}}, {}, at::kFloat), hooked(group, {{40, 20}}, hook, at::kFloat);
    CHECK(near(hooked.reduced({gradient})[0], plain.reduced({gradient})[0], tolerance));
    CHECK((hooked.gradient_reducer.reducer_state().size() > 1) == with_factors);  // in addition to the step count
  });
}

}  // namespace

TEST_CASE("reductions before the start step are plain, bit for bit; later a low-rank gradient is exact") {
  run_threads(2, [](const Group& group) {
    const auto gradient = [&](int64_t step) { return low_rank(40, 20, 1, 10 * step + group.rank()); };
    Hooked plain(group, {{40, 20}, {7}}, {});
    // the mean of two matrices of rank 1 has rank 2
    Hooked hooked(group, {{40, 20}, {7}}, power_sgd_hook(from_step(2, 2)));
    for (int64_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      const auto vector = numbers({7}, step + group.rank());
      const auto expected = plain.reduced({gradient(step), vector});
      const auto seen = hooked.reduced({gradient(step), vector});
      CHECK(torch::equal(seen[0], expected[0]) == (step < 2));
      CHECK(near(seen[0], expected[0], 1e-10));
      CHECK(torch::equal(seen[1], expected[1]));
      CHECK(bit_equal(group, seen));
    }
  });
}

TEST_CASE("convolutions, also in channels-last memory, are matrices by output channels") {
  run_threads(2, [](const Group& group) {
    const auto gradient = low_rank(8, 36, 1, 3).view({8, 4, 3, 3});
    Hooked hooked(group, {{8, 4, 3, 3}}, power_sgd_hook(from_step(0)));
    CHECK(near(hooked.reduced({gradient})[0], gradient, 1e-12));
    auto parameter = torch::zeros({8, 4, 3, 3}, torch::kDouble).contiguous(at::MemoryFormat::ChannelsLast);
    parameter.requires_grad_();
    GradientReducer gradient_reducer(group.duplicate(), {{"p", parameter}}, {.hook = power_sgd_hook(from_step(0))});
    (parameter * gradient).sum().backward();
    CHECK(near(parameter.grad(), gradient, 1e-12));
  });
}

TEST_CASE("bytes match the formula: factors if they save enough, other parameters unchanged, and the counts") {
  const std::vector<std::vector<int64_t>> shapes{{40, 20}, {7}, {3, 3}, {8, 4, 3, 3}};
  const std::vector<at::IntArrayRef> refs(shapes.begin(), shapes.end());
  CHECK(power_sgd_numbers(refs, {.matrix_approximation_rank = 2}) == 2 * (40 + 20) + 7 + 9 + 2 * (8 + 36));
  CHECK(power_sgd_numbers(refs, {.min_compression_rate = 12}) == (40 + 20) + 7 + 9 + 8 * 36);
  run_threads(2, [&](const Group& group) {
    Hooked hooked(group, shapes, power_sgd_hook(from_step(0, 2)), at::kFloat);
    std::vector<at::Tensor> ones;
    for (const auto& shape : shapes) ones.push_back(torch::ones(shape));
    hooked.reduced(ones);
    const auto counts = static_cast<int64_t>(shapes.size());
    CHECK(hooked.gradient_reducer.bytes_communicated() == 4 * (power_sgd_numbers(refs, from_step(0, 2)) + counts));
    // 800 numbers, which need no padding, as a matrix of 29 times 29.
    Hooked batched(group, {{40, 20}}, batched_power_sgd_hook(from_step(0, 2)), at::kFloat);
    batched.reduced({torch::ones({40, 20})});
    CHECK(batched.gradient_reducer.bytes_communicated() == 4 * (2 * 29 * 2 + 1));
  });
}

TEST_CASE("batched: a bucket that is a low-rank matrix is exact from the start step on") {
  run_threads(2, [](const Group& group) {
    const auto gradient = [&](int64_t step) { return low_rank(32, 32, 1, 10 * step + group.rank()); };
    Hooked plain(group, {{32, 32}}, {});  // 8 KB: no padding, so the bucket is the square
    Hooked hooked(group, {{32, 32}}, batched_power_sgd_hook(from_step(2, 2)));
    for (int64_t step = 0; step < 5; ++step) {
      CAPTURE(step);
      const auto expected = plain.reduced({gradient(step)});
      const auto seen = hooked.reduced({gradient(step)});
      CHECK(torch::equal(seen[0], expected[0]) == (step < 2));
      CHECK(near(seen[0], expected[0], 1e-10));
      CHECK(bit_equal(group, seen));
    }
  });
}

TEST_CASE("training converges with error feedback, and does not in the same steps without") {
  const double exact = distance_after_training({});
  const double with_feedback = distance_after_training(power_sgd_hook(from_step(0)));
  PowerSgdOptions without = from_step(0);
  without.use_error_feedback = false;
  const double without_feedback = distance_after_training(power_sgd_hook(without));
  CHECK(exact < 1e-4);
  CHECK(with_feedback < 1e-4);
  CHECK(distance_after_training(batched_power_sgd_hook(from_step(0))) < 1e-4);
  CHECK(without_feedback > 1);
}

TEST_CASE("with a warm start each step of a constant gradient is more exact than the one before") {
  run_threads(1, [](const Group& group) {
    PowerSgdOptions options = from_step(0);
    options.use_error_feedback = false;
    const auto gradient = numbers({30, 30}, 4);
    const auto error_of_last = [&](bool warm) {
      options.warm_start = warm;
      Hooked hooked(group, {{30, 30}}, power_sgd_hook(options));
      at::Tensor last;
      for (int step = 0; step < 20; ++step) last = hooked.reduced({gradient})[0];
      return (last - gradient).norm().item<double>();
    };
    const auto singular = std::get<1>(torch::linalg_svd(gradient));
    const double best = singular.slice(0, 1).norm().item<double>();
    CHECK(error_of_last(true) < best * 1.01);
    CHECK(error_of_last(false) > error_of_last(true));
  });
}

TEST_CASE("a gradient of zeros, or of no rank, is harmless; an infinite one affects one step") {
  run_threads(2, [](const Group& group) {
    for (const auto& hook : {power_sgd_hook(from_step(0)), batched_power_sgd_hook(from_step(0)),
                             bf16_compress_wrapper(power_sgd_hook(from_step(0)))}) {
      Hooked hooked(group, {{40, 20}, {40, 20}}, hook, at::kFloat);
      const auto ones = torch::ones({40, 20});
      CHECK(torch::equal(hooked.reduced({torch::zeros({40, 20}), torch::zeros({40, 20})})[0], torch::zeros({40, 20})));
      CHECK_FALSE(hooked.reduced({torch::zeros({40, 20}), {}})[1].defined());
      auto infinite = torch::ones({40, 20});
      infinite[3][4] = std::numeric_limits<float>::infinity();
      CHECK_FALSE(hooked.reduced({infinite, ones})[0].isfinite().all().item<bool>());
      at::Tensor last;
      for (int step = 0; step < 8; ++step) last = hooked.reduced({ones, ones})[0];
      CHECK(near(last, ones, 0.05));
    }
  });
}

TEST_CASE("a parameter that no rank uses in a step keeps its error") {
  run_threads(2, [](const Group& group) {
    for (const auto& hook : {power_sgd_hook(from_step(0)), batched_power_sgd_hook(from_step(0)),
                             fp16_compress_wrapper(power_sgd_hook(from_step(0)))}) {
      Hooked hooked(group, {{40, 20}, {40, 20}}, hook, at::kFloat);
      const auto gradient = [&](int64_t seed) { return numbers({40, 20}, 2 * seed + group.rank(), at::kFloat); };
      const auto residual = [&] {
        for (const auto& [name, tensor] : hooked.gradient_reducer.reducer_state()) {
          if (name == "error of 1") return tensor.to(at::kFloat);
          // One matrix of the bucket; the parameter that arrives last is after the other one.
          if (name == "error of 1,0") return tensor.to(at::kFloat).flatten().narrow(0, 0, 800);
        }
        return at::Tensor();
      };
      hooked.reduced({gradient(1), gradient(2)});
      const auto before = residual().clone();
      CHECK(before.norm().item<double>() > 1);
      for (int64_t step = 3; step < 6; ++step) CHECK_FALSE(hooked.reduced({gradient(step), {}})[1].defined());
      CHECK((residual() - before).norm().item<double>() < 1e-2 * before.norm().item<double>());
    }
  });
}

TEST_CASE("PowerSGD cannot be captured, within another hook neither; a cast can") {
  run_threads(1, [](const Group& group) {
    const std::string reason =
        "PowerSGD keeps count and factors from one reduction to the next, which a replay would not";
    const Hooked plain(group, {{40, 20}}, power_sgd_hook(from_step(0)));
    CHECK(plain.gradient_reducer.reducer().not_capturable_reason() == reason);
    const Hooked wrapped(group, {{40, 20}}, bf16_compress_wrapper(power_sgd_hook(from_step(0))));
    CHECK(wrapped.gradient_reducer.reducer().not_capturable_reason() == reason);
    const Hooked cast(group, {{40, 20}}, fp16_compress_hook());
    CHECK(cast.gradient_reducer.reducer().not_capturable_reason() == "");
  });
}

TEST_CASE("every hook is within 1e-2 of the mean for 40 x 20, as in Accelerate's test; bf16 factors within 0.06") {
  for (const int64_t start : {1000, 0}) {
    // Full rank loses only digits; the factors are larger than the parameter.
    const PowerSgdOptions full{.matrix_approximation_rank = 29, .start_step = start, .min_compression_rate = 0.5};
    const double in_bf16 = start == 0 ? 0.06 : 1e-2;  // 8 bits in the factors and all arithmetic on them: 0.01
    const std::vector<std::pair<CommHook, double>> hooks{
        {power_sgd_hook(full), 1e-2},
        {batched_power_sgd_hook(full), 1e-2},
        {fp16_compress_wrapper(power_sgd_hook(full)), 1e-2},
        {fp16_compress_wrapper(batched_power_sgd_hook(full)), 1e-2},
        {bf16_compress_wrapper(power_sgd_hook(full)), in_bf16},
        {bf16_compress_wrapper(batched_power_sgd_hook(full)), in_bf16}};
    for (const auto& [hook, tolerance] : hooks) check_within(tolerance, hook, /*with_factors=*/start == 0);
  }
  for (const auto& hook : {fp16_compress_hook(), bf16_compress_hook(), power_sgd_hook(),
                           fp16_compress_wrapper(power_sgd_hook()), bf16_compress_wrapper(power_sgd_hook())}) {
    check_within(1e-2, hook, /*with_factors=*/false);
  }
}

TEST_CASE("a resumed state has the same bits: before and after the start step, in other buckets") {
  for (const int64_t saved_after : {1, 2, 5}) {
    for (const auto& hook : {power_sgd_hook(from_step(2, 2)), batched_power_sgd_hook(from_step(2, 2)),
                             fp16_compress_wrapper(power_sgd_hook(from_step(2, 2)))}) {
      CAPTURE(saved_after);
      run_threads(2, [&](const Group& group) {
        const auto gradients = [&](int64_t step) -> std::vector<at::Tensor> {
          const int64_t seed = 10 * step + group.rank();
          return {numbers({40, 20}, seed, at::kFloat), numbers({7}, seed + 3, at::kFloat),
                  numbers({16, 3, 3, 3}, seed + 5, at::kFloat)};
        };
        const std::vector<std::vector<int64_t>> shapes{{40, 20}, {7}, {16, 3, 3, 3}};
        Hooked first(group, shapes, hook, at::kFloat), second(group, shapes, hook, at::kFloat);
        for (int64_t step = 0; step < saved_after; ++step) first.reduced(gradients(step));
        second.gradient_reducer.load_reducer_state(first.gradient_reducer.reducer_state());
        // A save before the first reduction keeps the loaded state.
        Hooked third(group, shapes, hook, at::kFloat);
        third.gradient_reducer.load_reducer_state(second.gradient_reducer.reducer_state());
        for (int64_t step = saved_after; step < saved_after + 4; ++step) {
          const auto expected = first.reduced(gradients(step));
          for (Hooked* other : {&second, &third}) {
            const auto seen = other->reduced(gradients(step));
            for (size_t i = 0; i < seen.size(); ++i) CHECK(torch::equal(seen[i], expected[i]));
          }
        }
      });
    }
  }
}

TEST_CASE("a saved state with other shapes is ignored, and so is one if nothing is kept") {
  run_threads(2, [](const Group& group) {
    const auto hook = power_sgd_hook(from_step(0, 2));
    Hooked saved(group, {{40, 20}}, hook), plain(group, {{40, 20}}, {});
    const auto gradient = numbers({40, 20}, group.rank());
    saved.reduced({gradient});
    CHECK(plain.gradient_reducer.reducer_state().empty());
    plain.gradient_reducer.load_reducer_state(saved.gradient_reducer.reducer_state());
    const auto mean = plain.reduced({gradient})[0];
    Hooked other(group, {{20, 40}}, power_sgd_hook(from_step(0, 20)));
    other.gradient_reducer.load_reducer_state(saved.gradient_reducer.reducer_state());
    CHECK(near(other.reduced({gradient.t().contiguous()})[0], mean.t(), 1e-12));  // full rank without an added error
  });
}

TEST_CASE("options out of range are refused with their values") {
  CHECK_THROWS_WITH(power_sgd_hook({.matrix_approximation_rank = 0}),
                    "power_sgd_hook: matrix_approximation_rank is 0, must be at least 1");
  CHECK_THROWS_WITH(batched_power_sgd_hook({.start_step = -1}),
                    "batched_power_sgd_hook: start_step is -1, must be at least 0");
  CHECK_THROWS_WITH(power_sgd_hook({.min_compression_rate = 0}),
                    "power_sgd_hook: min_compression_rate is 0, must be more than 0");
}
