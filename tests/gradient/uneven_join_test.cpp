// SPDX-License-Identifier: Apache-2.0
#include "accelerate/gradient/uneven_join.hpp"

#include "accelerate/base/log.hpp"
#include "support.hpp"

using namespace gradient_testing;
using accelerate::Error;
using accelerate::ErrorKind;
using accelerate::comm::run_threads;
using accelerate::gradient::BufferBroadcast;
using accelerate::gradient::JoinModel;
using accelerate::gradient::JoinOptions;
using accelerate::gradient::run_backward;
using accelerate::gradient::UnevenJoin;

namespace {

// The common parameters after ranks with the given numbers of batches trained with SGD, computed in one process.
std::vector<at::Tensor> reference(const std::vector<int64_t>& batches, bool divide_by_all) {
  auto net = built(make_net);
  torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).weight_decay(0.1));
  const int64_t steps = *std::max_element(batches.begin(), batches.end());
  for (int64_t step = 0; step < steps; ++step) {
    sgd.zero_grad();
    int64_t active = 0;
    for (size_t rank = 0; rank < batches.size(); ++rank) {
      if (step >= batches[rank]) continue;
      ++active;
      net->forward(batch(static_cast<int64_t>(rank), step)).pow(2).sum().backward();
    }
    const auto divisor = static_cast<double>(divide_by_all ? static_cast<int64_t>(batches.size()) : active);
    for (const auto& parameter : net->parameters()) {
      if (parameter.grad().defined()) parameter.mutable_grad() /= divisor;
    }
    sgd.step();
  }
  return net->parameters();
}

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(4));
    out = register_module("out", torch::nn::Linear(4, 2));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) { return out(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};

std::vector<NamedTensor> buffers_of(const torch::nn::Module& module) {
  std::vector<NamedTensor> all;
  for (const auto& item : module.named_buffers()) all.push_back({item.key(), item.value()});
  return all;
}

}  // namespace

TEST_CASE("ranks with different numbers of batches train without hanging and end equal") {
  const std::vector<std::vector<int64_t>> cases{{2, 1}, {1, 3}, {0, 2}, {2, 2}, {0, 0}, {1, 4, 2, 0}};
  for (const auto& batches : cases) {
    for (const bool divide_by_all : {true, false}) {
      CAPTURE(divide_by_all);
      const auto expected = reference(batches, divide_by_all);
      run_threads(static_cast<int64_t>(batches.size()), [&](const Group& group) {
        auto net = built(make_net);
        torch::optim::SGD sgd(net->parameters(), torch::optim::SGDOptions(0.01).weight_decay(0.1));
        GradientReducer gradient_reducer(group, named(net), small_buckets());
        UnevenJoin join(group.duplicate(), {{&gradient_reducer}}, {.divide_by_all_ranks = divide_by_all});
        for (int64_t step = 0; step < batches[static_cast<size_t>(group.rank())]; ++step) {
          gradient_reducer.zero_all();
          net->forward(batch(group.rank(), step)).pow(2).sum().backward();
          gradient_reducer.before_step();
          sgd.step();
        }
        join.finish();
        CHECK(same(net->parameters(), expected, 1e-13));
        CHECK(bit_equal(group, net->parameters()));
      });
    }
  }
}

TEST_CASE("training continues in step after the join") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    for (int epoch = 0; epoch < 2; ++epoch) {
      const UnevenJoin join(group.duplicate(), {{&gradient_reducer}});
      for (int64_t step = 0; step <= group.rank(); ++step) {
        gradient_reducer.zero_all();
        net->forward(batch(group.rank(), step)).pow(2).sum().backward();
      }
    }
    gradient_reducer.zero_all();
    net->with_extra(batch(group.rank())).pow(2).sum().backward();
    CHECK(same(gradients_of(net->parameters()), truth(2, make_net, [](const NetPtr& n, int64_t rank) {
                 n->with_extra(batch(rank)).pow(2).sum().backward();
               })));
  });
}

TEST_CASE("buffer broadcasts in the join use a rank with batches left, and buffers end equal") {
  run_threads(3, [](const Group& group) {
    auto net = built([] { return std::make_shared<NormedImpl>(); });
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    BufferBroadcast buffers(group.duplicate(), buffers_of(*net));
    UnevenJoin join(group.duplicate(), {{&gradient_reducer, &buffers}});
    const int64_t mine = 1 + group.rank();  // rank 2 has the most batches
    for (int64_t step = 0; step < mine; ++step) {
      gradient_reducer.zero_all();
      buffers.run();
      net->forward(batch(group.rank(), step)).pow(2).sum().backward();
    }
    join.finish();
    CHECK(bit_equal(group, net->buffers()));
    CHECK(bit_equal(group, net->parameters()));
    CHECK(net->norm->num_batches_tracked.item<int64_t>() == 3);
  });
}

TEST_CASE("a model without its own gradient reducer joins with its buffers alone") {
  run_threads(2, [](const Group& group) {
    auto net = built([] { return std::make_shared<NormedImpl>(); });
    BufferBroadcast buffers(group.duplicate(), buffers_of(*net));
    UnevenJoin join(group.duplicate(), {{nullptr, &buffers}});
    for (int64_t step = 0; step < 1 + 2 * group.rank(); ++step) {
      buffers.run();
      (void)net->forward(batch(group.rank(), step));
    }
    join.finish();
    CHECK(bit_equal(group, net->buffers()));
    CHECK(net->norm->num_batches_tracked.item<int64_t>() == 3);
  });
}

TEST_CASE("no_sync windows and run_backward work in the join") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net), small_buckets());
    const std::vector<GradientReducer*> gradient_reducers{&gradient_reducer};
    UnevenJoin join(group.duplicate(), {{&gradient_reducer}});
    const int64_t windows = group.rank() == 0 ? 3 : 1;
    for (int64_t micro = 0; micro < 2 * windows; ++micro) {
      gradient_reducer.set_sync(micro % 2 == 1);
      run_backward(gradient_reducers, group, [&] { net->forward(batch(group.rank(), micro)).pow(2).sum().backward(); });
    }
    join.finish();
    CHECK(bit_equal(group, net->parameters()));
  });
}

TEST_CASE("ranks with different numbers of steps throw on every rank") {
  std::atomic<int> refusals = 0;
  run_threads(3, [&](const Group& group) {
    auto a = built(make_net);
    auto b = built(make_net);
    GradientReducer of_a(group.duplicate(), named(a));
    GradientReducer of_b(group.duplicate(), named(b));
    try {
      UnevenJoin join(group.duplicate(), {{&of_a}, {&of_b}});
      if (group.rank() < 2) (group.rank() == 0 ? a : b)->forward(batch(0)).sum().backward();
      join.finish();
    } catch (const Error& error) {
      CHECK(error.kind() == ErrorKind::usage);
      CHECK(std::string(error.what()) ==
            accelerate::base::prefix(group.place()) +
                "join_uneven_inputs: of 2 ranks that still have batches 1 reduce the gradients of model 0, 1 reduce "
                "the gradients of model 1; their steps must be equal");
      ++refusals;
    }
  });
  CHECK(refusals == 3);
}

TEST_CASE("a model can be in one join at a time") {
  run_threads(2, [](const Group& group) {
    auto net = built(make_net);
    GradientReducer gradient_reducer(group, named(net));
    UnevenJoin join(group.duplicate(), {{&gradient_reducer}});
    const auto second = [&] { const UnevenJoin other(group.duplicate(), {{&gradient_reducer}}); };
    CHECK_THROWS_WITH_AS(second(),
                         (accelerate::base::prefix(group.place()) +
                          "join_uneven_inputs: a model is in another join_uneven_inputs already; end that one first")
                             .c_str(),
                         Error);
    join.finish();
  });
}

TEST_CASE("the join does nothing in one process") {
  UnevenJoin join({}, {});
  join.finish();
}
