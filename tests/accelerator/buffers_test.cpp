// SPDX-License-Identifier: Apache-2.0
// BatchNorm's statistics over the ranks, compared with PyTorch 2.11's DistributedDataParallel on two ranks in float64.
#include "tests/testing.hpp"
//
#include <torch/script.h>

#include <mutex>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

struct NormedOnceImpl : torch::nn::Module {
  NormedOnceImpl() {
    norm = register_module("norm", torch::nn::BatchNorm1d(1));
    out = register_module("out", torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
    to(torch::kDouble);
    torch::nn::init::ones_(out->weight);
  }
  torch::Tensor forward(const torch::Tensor& x) { return out(norm(x)); }
  torch::nn::BatchNorm1d norm{nullptr};
  torch::nn::Linear out{nullptr};
};
TORCH_MODULE(NormedOnce);

torch::Tensor batch(Accelerator& accelerator, int64_t step) {
  return torch::tensor({{1.0}, {2.0}}, torch::kDouble) * (step + 1) + accelerator.process_index();
}
double mean_of(const NormedOnce& net) { return net->norm->running_mean.item<double>(); }

}  // namespace

TEST_CASE("the forward after a synchronised one broadcasts rank 0's buffers, as in PyTorch") {
  const std::vector<std::vector<double>> expected{
      {0.15, 0.15, 0.435, 0.8415, 0.8415, 0.8415, 1.35735, 1.971615, 2.6744535, 3.45700815, 3.45700815},
      {0.25, 0.15, 0.535, 0.9415, 0.8415, 0.8415, 1.45735, 2.161615, 2.9454535, 3.55700815, 3.55700815}};
  on_ranks(2, [&](Accelerator& accelerator) {
    NormedOnce net;
    auto model = accelerator.prepare(net);
    std::vector<double> seen;
    const auto train = [&](int64_t step) {
      net->train();
      accelerator.backward(model(batch(accelerator, step)).pow(3).sum());
      seen.push_back(mean_of(net));
    };
    const auto train_locally = [&](int64_t step) {
      auto local = accelerator.no_sync(model);
      train(step);
    };
    const auto evaluate = [&] {
      net->eval();
      const torch::NoGradGuard no_grad;
      model(batch(accelerator, 0));
      seen.push_back(mean_of(net));
    };
    train(0);
    evaluate();
    train(1);
    train(2);
    evaluate();
    evaluate();
    train_locally(3);
    train_locally(4);
    train(5);
    train_locally(6);
    evaluate();
    const auto& mine = expected[static_cast<size_t>(accelerator.process_index())];
    REQUIRE(seen.size() == mine.size());
    for (size_t i = 0; i < seen.size(); ++i) {
      CAPTURE(i);
      CHECK(seen[i] == doctest::Approx(mine[i]).epsilon(1e-12));
    }
  });
}

TEST_CASE("a join broadcasts the buffers of the highest rank with batches left, as PyTorch does") {
  struct Row {
    std::vector<int64_t> steps;  // number of steps per rank
    double mean, variance, weight;
    std::vector<double> last_rank;  // running mean of the last rank after each step
  };
  const std::vector<Row> rows{
      {{1, 3}, 1.1125, 1.3995, 6.716862089247227, {0.25, 0.625, 1.1125}},
      {{2, 4, 3, 4}, 2.38905, 2.05955, 25668365.93507255, {0.45, 1.005, 1.6545, 2.38905}},
  };
  for (const Row& row : rows) {
    const auto ranks = static_cast<int64_t>(row.steps.size());
    on_ranks(ranks, [&](Accelerator& accelerator) {
      NormedOnce net;
      auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
      const bool is_last = accelerator.is_last_process();
      std::vector<double> seen;
      {
        auto join = accelerator.join_uneven_inputs(model);
        for (int64_t step = 0; step < row.steps[static_cast<size_t>(accelerator.process_index())]; ++step) {
          optimizer.zero_grad();
          accelerator.backward(model(batch(accelerator, step)).pow(3).sum());
          optimizer.step();
          seen.push_back(mean_of(net));
        }
      }
      for (size_t i = 0; is_last && i < seen.size(); ++i) {
        CHECK(seen[i] == doctest::Approx(row.last_rank.at(i)).epsilon(1e-12));
      }
      CHECK(mean_of(net) == doctest::Approx(row.mean).epsilon(1e-12));
      CHECK(net->norm->running_var.item<double>() == doctest::Approx(row.variance).epsilon(1e-12));
      CHECK(net->out->weight.item<double>() == doctest::Approx(row.weight).epsilon(1e-9));
      CHECK(net->norm->num_batches_tracked.item<int64_t>() == static_cast<int64_t>(row.last_rank.size()));
    });
  }
}

TEST_CASE("ranks agree on the next broadcast after windows of different lengths in a join") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             NormedOnce net;
             auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
             {
               auto join = accelerator.join_uneven_inputs(model);
               // 4 batches on rank 0, 1 on rank 1
               for (int64_t micro = 0; micro < 4 - 3 * accelerator.process_index(); ++micro) {
                 auto window = accelerator.accumulate(model);
                 accelerator.backward(model(batch(accelerator, micro)).pow(3).sum());
                 optimizer.step();
                 optimizer.zero_grad();
               }
             }
             accelerator.set_sync_gradients(true);
             net->eval();
             const torch::NoGradGuard no_grad;
             model(batch(accelerator, 0));
             const auto all = accelerator.gather(net->norm->running_mean.reshape({1}));
             CHECK(all[0].equal(all[1]));
           },
           {.gradient_accumulation_steps = 2});
}

TEST_CASE("an expanded buffer has rank 0's values on every rank") {
  on_ranks(3, [](Accelerator& accelerator) {
    OneWeight net;
    net->register_buffer("scale", torch::full({1}, accelerator.process_index() + 1, torch::kDouble).expand({4}));
    auto model = accelerator.prepare(net);
    for (int step = 0; step < 2; ++step) accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
    CHECK(net->named_buffers()["scale"].equal(torch::ones({4}, torch::kDouble)));
  });
}

TEST_CASE("buffers of a changed dtype are broadcast in the new dtype") {
  on_ranks(2, [](Accelerator& accelerator) {
    NormedOnce net;
    auto model = accelerator.prepare(net);
    accelerator.backward(model(batch(accelerator, 0)).pow(3).sum());
    model->to(torch::kFloat);
    for (int64_t step = 1; step < 3; ++step) {
      accelerator.backward(model(batch(accelerator, step).to(torch::kFloat)).pow(3).sum());
    }
    const torch::NoGradGuard no_grad;
    net->eval();
    model(batch(accelerator, 0).to(torch::kFloat));
    const auto all = accelerator.gather(net->norm->running_mean.reshape({1}));
    CHECK(all[0].equal(all[1]));
    CHECK((all.scalar_type() == torch::kFloat));
  });
}

TEST_CASE("tensors that a TorchScript forward assigns to buffers are broadcast before the next forward") {
  static std::mutex one_at_a_time;  // the compilation is not thread-safe
  on_ranks(2, [](Accelerator& accelerator) {
    torch::jit::Module net("net");
    {
      const std::lock_guard lock(one_at_a_time);
      net.register_parameter("weight", torch::ones({1}, torch::kDouble), false);
      net.register_buffer("seen", torch::zeros({1}, torch::kDouble));
      net.define("def forward(self, x):\n  self.seen = self.seen + x\n  return self.weight * x + self.seen\n");
    }
    for (const auto& parameter : net.parameters()) parameter.requires_grad_(true);
    auto model = accelerator.prepare(net);
    const double mine = static_cast<double>(accelerator.process_index()) + 1;
    for (int step = 0; step < 3; ++step) {
      accelerator.backward(model({torch::full({1}, mine, torch::kDouble)}).toTensor().sum());
      CHECK(net.attr("seen").toTensor().item<double>() == step + mine);  // rank 0's value, and this rank's
      CHECK(accelerator.get_state_dict(model)["seen"].item<double>() == step + mine);
    }
    {
      auto join = accelerator.join_uneven_inputs(model);
      accelerator.backward(model({torch::full({1}, mine, torch::kDouble)}).toTensor().sum());
    }
    CHECK(net.attr("seen").toTensor().item<double>() == 6);  // the highest rank's value: 4 after the loop, and 2
  });
}
