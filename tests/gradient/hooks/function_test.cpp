// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

using namespace gradient_testing;

namespace {

std::string refusal_of(const ReduceFunction& reduce) {
  std::string message;
  run_threads(1, [&](const Group& group) {
    Hooked hooked(group, {{3}}, comm_hook(reduce));
    try {
      hooked.reduced({torch::ones({3}, torch::kDouble)});
    } catch (const accelerate::Error& error) {
      message = error.what();
    }
  });
  return message;
}

/// An all-reduce that throws once, on request.
auto failing_once(bool& fails) {
  return comm_hook([&fails](const GradientBucket& bucket, const Group& own) {
    if (std::exchange(fails, false)) throw std::runtime_error("mine");
    own.all_reduce(bucket.gradients);
    return bucket.gradients;
  });
}

}  // namespace

TEST_CASE("a hook function reduces each bucket and returns the gradients") {
  run_threads(2, [](const Group& group) {
    int64_t calls = 0;
    Hooked hooked(group, {{2, 3}, {4}}, comm_hook([&](const GradientBucket& bucket, const Group& own) {
                    ++calls;
                    const at::Tensor twice = bucket.gradients * 2;
                    own.all_reduce(twice);
                    return twice;
                  }));
    for (int round = 1; round < 4; ++round) {
      const auto mine = torch::full({2, 3}, static_cast<double>(group.rank() + 1));
      const auto seen = hooked.reduced({mine, torch::ones({4}, torch::kDouble)});
      CHECK(torch::equal(seen[0], torch::full({2, 3}, 3.0, torch::kDouble)));
      CHECK(torch::equal(seen[1], torch::full({4}, 2.0, torch::kDouble)));
      CHECK(calls == round * static_cast<int64_t>(hooked.gradient_reducer.plan().buckets.size()));
    }
  });
}

TEST_CASE("bytes that a hook writes between the parameters do not affect gradients and norms") {
  run_threads(2, [](const Group& group) {
    Hooked hooked(group, {{3}, {3}}, comm_hook([](const GradientBucket& bucket, const Group& own) {
                    own.all_reduce(bucket.gradients);
                    return bucket.gradients + 1;
                  }));
    hooked.reduced({torch::ones({3}, torch::kDouble), torch::ones({3}, torch::kDouble)});
    double sum = 0;
    for (const at::Tensor& flat : hooked.gradient_reducer.gradients()) sum += flat.sum().item<double>();
    CHECK(sum == 12);
  });
}

TEST_CASE("a function with a wrong result is reported: other shape, other dtype, undefined; an empty one too") {
  const std::string remedy = "; return a tensor like bucket.gradients";
  const std::string bucket = " for bucket 0, which is [8] Double on cpu";
  const std::string prefix =
      "[rank 0 of 1, " + accelerate::base::host_name() + "] backward: the communication hook returned ";
  const auto seen = refusal_of([](const GradientBucket& b, const Group&) { return b.gradients.narrow(0, 0, 3); });
  CHECK(seen == prefix + "[3] Double on cpu" + bucket + remedy);
  CHECK(refusal_of([](const GradientBucket& b, const Group&) { return b.gradients.to(at::kFloat); }) ==
        prefix + "[8] Float on cpu" + bucket + remedy);
  CHECK(refusal_of([](const GradientBucket&, const Group&) { return at::Tensor(); }) ==
        prefix + "an undefined tensor" + bucket + remedy);
  CHECK_THROWS_WITH(comm_hook({}), "comm_hook: the function is empty, must reduce a bucket");
}

TEST_CASE("backward throws the function's exception, and the next backward is correct") {
  run_threads(2, [](const Group& group) {
    bool fails = true;
    Hooked hooked(group, {{3}}, failing_once(fails));
    const auto ones = torch::ones({3}, torch::kDouble);
    CHECK_THROWS_WITH(hooked.reduced({ones}), "mine");
    CHECK(torch::equal(hooked.reduced({ones})[0], ones));
  });
}

TEST_CASE("a step does not use gradients that the hook left unreduced by an exception, until they are zeroed") {
  run_threads(2, [](const Group& group) {
    bool fails = false;
    Hooked hooked(group, {{3}}, failing_once(fails));
    const auto ones = torch::ones({3}, torch::kDouble);
    hooked.reduced({ones});  // the buckets exist: the next one is launched within the backward
    fails = true;
    CHECK_THROWS_WITH(hooked.reduced({ones}), "mine");
    CHECK_THROWS_WITH(hooked.gradient_reducer.before_step(),
                      doctest::Contains("optimizer.step: the reduction of the gradients broke off with an error, so "
                                        "they differ between the 2 ranks; zero them before the next backward"));
    CHECK(torch::equal(hooked.reduced({ones})[0], ones));
    hooked.gradient_reducer.before_step();
  });
}

TEST_CASE("gradients that the stock zero_grad() dropped after an exception need no further zeroing") {
  run_threads(2, [](const Group& group) {
    bool fails = false;
    Hooked hooked(group, {{3}}, failing_once(fails));
    const auto ones = torch::ones({3}, torch::kDouble);
    hooked.reduced({ones});
    for (const bool through_engine : {false, true}) {
      fails = true;
      CHECK_THROWS_WITH(hooked.reduced({ones}), "mine");
      hooked.parameters[0].mutable_grad().reset();
      const auto backward = [&] { (hooked.parameters[0] * ones).sum().backward(); };
      if (through_engine) {
        accelerate::gradient::run_backward(std::vector<GradientReducer*>{&hooked.gradient_reducer}, group, backward);
      } else {
        hooked.gradient_reducer.forward(true);
        backward();
      }
      hooked.gradient_reducer.before_step();
      CHECK(torch::equal(hooked.parameters[0].grad(), ones));
    }
  });
}

TEST_CASE("other ranks' values for an unused parameter are removed after an exception") {
  run_threads(2, [](const Group& group) {
    int64_t calls = 0;
    const auto hook = comm_hook([&](const GradientBucket& bucket, const Group& own) {
      if (++calls == 2) throw std::runtime_error("mine");
      own.all_reduce(bucket.gradients);
      return bucket.gradients;
    });
    Hooked hooked(group, {{4}, {3}}, hook, at::kDouble, {.cap_bytes = 8, .first_cap_bytes = 8});
    const auto ones = torch::ones({4}, torch::kDouble);
    const auto last = group.rank() == 1 ? at::Tensor() : torch::ones({3}, torch::kDouble);  // arrives first
    CHECK_THROWS_WITH(hooked.reduced({ones, last}), "mine");
    CHECK(hooked.gradient_reducer.plan().buckets.at(0).items == std::vector<int64_t>{1});
    CHECK(torch::equal(hooked.reduced({ones, last})[1], torch::full({3}, 0.5, torch::kDouble)));
  });
}
