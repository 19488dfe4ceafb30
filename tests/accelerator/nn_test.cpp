// SPDX-License-Identifier: Apache-2.0
// SyncBatchNorm, checkpoint() and the detection of diverged ranks, through the facade.
#include "tests/testing.hpp"
//
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;

namespace {

struct NormedImpl : torch::nn::Module {
  NormedImpl() {
    norm = register_module("norm", accelerate::nn::SyncBatchNorm(1));
    layers = register_module("layers", torch::nn::Sequential(torch::nn::Linear(1, 1), torch::nn::BatchNorm1d(1)));
    to(torch::kDouble);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return accelerate::nn::checkpoint([this](const torch::Tensor& in) { return layers->forward(norm(in)); }, x);
  }
  accelerate::nn::SyncBatchNorm norm{nullptr};
  torch::nn::Sequential layers{nullptr};
};
TORCH_MODULE(Normed);

torch::Tensor batch_of_rank(const Accelerator& accelerator, int64_t step = 0) {
  return torch::tensor({{1.0}, {2.0}}, torch::kDouble) * (step + 1) + accelerator.process_index();
}

template <typename Model, typename Optimizer>
void train(Accelerator& accelerator, const Model& model, const Optimizer& optimizer, int64_t step = 0) {
  optimizer.zero_grad();
  accelerator.backward(model(batch_of_rank(accelerator, step)).pow(2).sum());
  optimizer.step();
}

template <typename Model>
std::string error_of(Accelerator& accelerator, const Model& model) {
  try {
    accelerator.check_synchronized(model);
  } catch (const accelerate::Error& error) {
    return error.what();
  }
  return "";
}

int64_t operations(const accelerate::comm::Group& group) {
  const std::string name = group.duplicate().process_group()->getGroupName();
  return std::stoll(name.substr(name.rfind('/') + 1));
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("prepare() connects the SyncBatchNorms of a model; convert_sync_batchnorm() replaces BatchNorms") {
  for (const bool convert_first : {true, false}) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               Normed net;
               if (convert_first) CHECK(accelerator.convert_sync_batchnorm(net) == 2);
               torch::optim::SGD sgd(net->parameters(), 0.1);
               auto [model, optimizer] = accelerator.prepare(net, sgd);
               CHECK(net->norm->connected());
               if (!convert_first) CHECK(accelerator.convert_sync_batchnorm(*model) == 2);
               for (int64_t step = 0; step < 3; ++step) train(accelerator, model, optimizer, step);
               CHECK(net->norm->num_batches_tracked.item<int64_t>() == 3);
               for (const auto& buffer : net->named_buffers()) {
                 const auto all = accelerator.gather(buffer.value().to(torch::kDouble));
                 CHECK(torch::equal(all[0], all[1]));
               }
               // 1, 2 on rank 0 and 2, 3 on rank 1
               CHECK(net->norm->running_mean.item<double>() ==
                     doctest::Approx(((2 * 0.1 * 0.9) + 3.5 * 0.1) * 0.9 + 5.0 * 0.1).epsilon(1e-12));
             },
             {.debug = true});
  }
}

TEST_CASE("identically trained models are equal; a different one is reported by name with its ranks") {
  on_ranks(2, [](Accelerator& accelerator) {
    Normed net;
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    CHECK(error_of(accelerator, model).empty());
    train(accelerator, model, optimizer);
    CHECK(
        // statistics of the LibTorch layer differ until the next forward, so they are not compared
        error_of(accelerator, model).empty());
    {
      const torch::NoGradGuard no_grad;
      model.eval();
      model(batch_of_rank(accelerator));  // broadcasts them
    }
    CHECK(error_of(accelerator, model).empty());
    if (accelerator.is_main_process()) {
      const torch::NoGradGuard no_grad;
      net->norm->bias.add_(1e-15);
    }
    CHECK(has(error_of(accelerator, model),
              "check_synchronized: parameter norm.bias [1] Double has one value on rank 0, another on rank 1 ("));
  });
}

TEST_CASE("unsynchronised buffers are compared: the stock BatchNorm's without broadcast_buffers") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             Normed net;
             torch::optim::SGD sgd(net->parameters(), 0.1);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             CHECK(error_of(accelerator, model).empty());
             train(accelerator, model, optimizer);
             CHECK(has(error_of(accelerator, model),
                       "check_synchronized: buffer layers.1.running_mean [1] Double has one value"));
           },
           {.broadcast_buffers = false});
}

TEST_CASE("check_synchronized_every compares every n steps with one operation and reports the step") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 0.1);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             std::vector<int64_t> made;
             for (int64_t step = 0; step < 5; ++step) {
               const int64_t before = operations(accelerator.group());
               train(accelerator, model, optimizer, step);
               made.push_back(operations(accelerator.group()) - before - 1);
             }
             CHECK(made == std::vector<int64_t>{0, 1, 0, 1, 0});
             if (accelerator.process_index() == 1) {
               const torch::NoGradGuard no_grad;
               net->w.neg_();
             }
             CHECK_THROWS_WITH_AS(
                 train(accelerator, model, optimizer),
                 doctest::Contains("check_synchronized: after 6 optimizer steps parameter w [1] Double has "
                                   "one value on rank 0, another on rank 1 (1 of 1 tensors differ)"),
                 accelerate::Error);
           },
           {.check_synchronized_every = 2});
}

TEST_CASE("ranks with different numbers of steps compare together again after a join") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 0.1);
             accelerate::optim::ExponentialLR falling(sgd, 0.5);
             auto [model, optimizer, scheduler] = accelerator.prepare(net, sgd, falling);
             const int64_t steps = accelerator.process_index() == 0 ? 3 : 2;
             {
               auto join = accelerator.join_uneven_inputs(model);
               for (int64_t step = 0; step < steps; ++step) {
                 train(accelerator, model, optimizer, step);
                 scheduler.step();
               }
             }
             // Schedules, and therefore the rates, match the rank with the most steps.
             CHECK(scheduler->steps() == 3);
             CHECK(scheduler.get_last_lr().front() == doctest::Approx(0.1 / 8));
             CHECK(sgd.param_groups()[0].options().get_lr() == doctest::Approx(0.1 / 8));
             for (int64_t step = 0; step < 5; ++step) {
               train(accelerator, model, optimizer, step);
               scheduler.step();
             }
             CHECK(error_of(accelerator, model).empty());
           },
           {.check_synchronized_every = 2});
}

TEST_CASE("a frozen model is compared with its buffers, which no forward broadcasts") {
  on_ranks(2, [](Accelerator& accelerator) {
    Normed net;
    for (auto& parameter : net->parameters()) parameter.requires_grad_(false);
    auto model = accelerator.prepare(net);
    CHECK(error_of(accelerator, model).empty());
    model(torch::full({4, 1}, static_cast<double>(accelerator.process_index()), torch::kDouble));
    CHECK(
        has(error_of(accelerator, model), "check_synchronized: buffer layers.1.running_mean [1] Double has one value"));
  });
}

TEST_CASE("ranks are not compared within local SGD, since they differ on purpose") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 0.1);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             {
               auto local = accelerator.local_sgd(model, 4);
               for (int64_t step = 0; step < 3; ++step) {
                 train(accelerator, model, optimizer, step);
                 local.step();
               }
             }
             CHECK_NOTHROW(train(accelerator, model, optimizer));
           },
           {.check_synchronized_every = 1});
}

TEST_CASE("micro-batches within a window do not count, and a negative number is refused") {
  on_ranks(2,
           [](Accelerator& accelerator) {
             OneWeight net;
             torch::optim::SGD sgd(net->parameters(), 0.1);
             auto [model, optimizer] = accelerator.prepare(net, sgd);
             std::vector<int64_t> made;
             for (int64_t step = 0; step < 4; ++step) {
               const int64_t before = operations(accelerator.group());
               auto window = accelerator.accumulate(model);
               train(accelerator, model, optimizer, step);
               made.push_back(operations(accelerator.group()) - before - 1);
             }
             CHECK(made == std::vector<int64_t>{0, 1, 0, 1});
           },
           {.gradient_accumulation_steps = 2, .check_synchronized_every = 1});
  CHECK_THROWS_WITH_AS(Accelerator({.cpu = true, .check_synchronized_every = -1}),
                       doctest::Contains("check_synchronized_every: is -1, must be 0 (never) or more"),
                       accelerate::Error);
}
