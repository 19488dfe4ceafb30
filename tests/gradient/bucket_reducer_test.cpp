// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/bucket_reducer.hpp"

#include "support.hpp"

using namespace gradient_testing;
using namespace accelerate::gradient;
using accelerate::comm::Execution;
using accelerate::comm::run_threads;
using Strings = std::vector<std::string>;

namespace {

// Records each call of the GradientReducer to a BucketReducer.
class Noted final : public BucketReducer {
 public:
  Noted(const Group& group, Strings& calls) : inner_(group), calls_(calls) {}
  void start(const GradientBucket& bucket, Execution execution) override {
    const auto bytes = static_cast<int64_t>(bucket.gradients.nbytes());
    calls_.push_back(fmt::format("start {}{}{}", bucket.index, bucket.is_last ? " last" : "",
                                 bucket.counts.defined() ? " with counts" : ""));
    CHECK(bytes % 128 == 0);  // two ranks
    CHECK(bucket.flat.numel() == bucket.gradients.numel() + (bucket.counts.defined() ? bucket.counts.numel() : 0));
    CHECK(bucket.share == 0.5);
    inner_.start(bucket, execution);
  }
  void finish(const GradientBucket& bucket) override {
    calls_.push_back(fmt::format("finish {}", bucket.index));
    inner_.finish(bucket);
  }
  void forget() override {
    calls_.emplace_back("forget");
    inner_.forget();
  }
  [[nodiscard]] int64_t bytes_communicated() const override { return inner_.bytes_communicated(); }

 private:
  AllReduce inner_;
  Strings& calls_;
};

// Plan over NetImpl's parameters: first.weight, first.bias, second.weight, second.bias, extra.weight, extra.bias.
BucketPlan plan_of(const std::vector<std::vector<int64_t>>& buckets) {
  BucketPlan plan;
  for (const auto& items : buckets) plan.buckets.push_back({.items = items});
  return plan;
}

std::string refusal(GradientReducerOptions options, at::ScalarType last = at::kDouble) {
  std::string message;
  auto net = built(make_net);
  net->extra->to(last);
  try {
    const GradientReducer gradient_reducer(Group(), named(net), std::move(options));
  } catch (const accelerate::Error& error) {
    message = error.what();
  }
  return message;
}

}  // namespace

TEST_CASE("buckets are reduced in order, start before finish, the last with the usage counts") {
  run_threads(2, [](const Group& group) {
    Strings calls;
    auto net = built(make_net);
    GradientReducerOptions options{.plan = plan_of({{5, 4, 3}, {2, 1, 0}})};
    options.hook = CommHook([&](const Group& own) { return std::make_unique<Noted>(own, calls); });
    GradientReducer gradient_reducer(group, named(net), options);
    net->with_extra(batch(group.rank())).sum().backward();
    CHECK(calls == Strings{"start 0", "start 1 last with counts", "finish 0", "finish 1"});
    const int64_t numbers = 6 * 4 + 6 + 2 * (3 * 6 + 3);
    CHECK(gradient_reducer.bytes_communicated() >= numbers * 8);
    CHECK(gradient_reducer.bytes_communicated() <
          numbers * 8 + 6 * 64 + 2 * 128 + 6 * 8);  // aligned parameters and buckets, the counts
    // The hook has not declared that it keeps no state on the host.
    CHECK(gradient_reducer.reducer().not_capturable_reason() ==
          "the hook's reducer may decide on the host, which replays do not call; override its "
          "not_capturable_reason()");
    calls.clear();
    net->to(torch::kFloat);
    gradient_reducer.before_step();
    CHECK(calls == Strings{"forget"});
  });
}

TEST_CASE("buckets from the options are used from the first reduction, without a new layout") {
  check_means(3, make_net, [](const NetPtr& net, int64_t rank) { net->with_extra(batch(rank)).sum().backward(); },
              {.plan = plan_of({{5, 0}, {4, 1, 2, 3}})});
  check_means(2, make_net,
              [](const NetPtr& net, int64_t rank) {
                (rank == 0 ? net->with_extra(batch(rank)) : net->forward(batch(rank))).pow(2).sum().backward();
              },
              {.plan = plan_of({{5, 0}, {}, {4, 1, 2, 3}})});
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    const auto given = plan_of({{5, 4, 3}, {2, 1, 0}});
    GradientReducer gradient_reducer(group, named(net), {.plan = given});
    CHECK(gradient_reducer.plan() == given);
    net->to(torch::kFloat);
    gradient_reducer.forward(true);
    net->with_extra(batch(group.rank()).to(torch::kFloat)).sum().backward();
    gradient_reducer.before_step();
    CHECK(bit_equal(group, gradients_of(net->parameters())));
    net->to(torch::kDouble);
    gradient_reducer.forward(true);
    net->with_extra(batch(group.rank())).sum().backward();
    CHECK(gradient_reducer.plan() == given);
    CHECK(bit_equal(group, gradients_of(net->parameters())));
  });
}

TEST_CASE("an incomplete, repeated or mixed plan, and one with static_graph, are refused") {
  CHECK(refusal({.plan = plan_of({{0, 1, 2, 3}, {5}})}) ==
        "prepare: the bucket plan lists parameter 4 (extra.weight) 0 times; list it once");
  CHECK(refusal({.plan = plan_of({{0, 1, 2, 3}, {5, 4, 0}})}) ==
        "prepare: the bucket plan lists parameter 0 (first.weight) 2 times; list it once");
  CHECK(refusal({.plan = plan_of({{0, 1, 2, 6}})}) ==
        "prepare: the bucket plan lists parameter 6, there are 6 that need a gradient: indices go from 0 to 5");
  CHECK(
      refusal({.plan = plan_of({{0, 1, 2, 3, 4, 5}})}, at::kFloat) ==
      "prepare: the bucket plan puts parameter extra.weight (Float cpu) into the bucket of first.weight (Double cpu); "
      "a bucket is of one dtype and device");
  CHECK(refusal({.static_graph = true, .plan = plan_of({{0, 1, 2, 3, 4, 5}})}) ==
        "prepare: static_graph determines the used parameters in the first reduction, which does not happen with a "
        "bucket plan; remove one of them");
}
