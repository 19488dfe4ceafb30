// SPDX-License-Identifier: Apache-2.0
// Handles of prepared objects: empty ones, those of base classes, and zeroing gradients through a model.
#include "tests/testing.hpp"
//
#include "tests/accelerator/ranks.hpp"

using accelerate::Accelerator;

namespace {

/// A function without templates and without types of optimizer, schedule or loader.
double train_with(Accelerator& accelerator, const accelerate::PreparedModel<OneWeightImpl>& model,
                  const accelerate::AnyOptimizer& optimizer, const accelerate::AnyScheduler& scheduler,
                  const accelerate::AnyLoader<accelerate::data::Batch>& loader) {
  double sum = 0;
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones_like(batch.data)).sum());
    optimizer.step();
    scheduler.step();
    sum += batch.data.sum().item<double>();
  }
  return sum;
}

/// Its members are constructed before the Accelerator.
class Training {
 public:
  void prepare(Accelerator& accelerator, OneWeight net, torch::optim::SGD& sgd) {
    std::tie(model_, optimizer_, loader_) = accelerator.prepare(std::move(net), sgd, counting(4, 2));
  }
  [[nodiscard]] int64_t steps() const {
    int64_t count = 0;
    for ([[maybe_unused]] auto& batch : loader_) {
      model_.zero_grad();
      optimizer_.step();
      ++count;
    }
    return count;
  }

 private:
  accelerate::PreparedModel<OneWeightImpl> model_;
  accelerate::AnyOptimizer optimizer_;
  accelerate::AnyLoader<accelerate::data::Batch> loader_;
};

template <typename Use>
void check_refused(const std::string& handle, const Use& use) {
  CHECK_THROWS_WITH_AS(
      use(), (handle + ": the handle is empty; assign the result of prepare() to it before it is used").c_str(),
      accelerate::Error);
}

/// Returns the gradient after each micro-batch of two windows of two, with dL/dw = 1.
std::vector<double> gradients(bool shared_optimizer, bool zero_first) {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  OneWeight net, other;
  std::vector<torch::Tensor> parameters{net->w};
  if (shared_optimizer) parameters.push_back(other->w);
  torch::optim::SGD sgd(parameters, 1.0);
  auto [model, second, optimizer] = accelerator.prepare(net, other, sgd);
  std::vector<double> seen;
  for (int i = 0; i < 4; ++i) {
    auto window = accelerator.accumulate();
    if (zero_first) model.zero_grad();
    accelerator.backward(model(full(1)).sum());
    seen.push_back(2 * net->w.grad().item<double>());
    optimizer.step();
    if (!zero_first) model.zero_grad();
  }
  return seen;
}

}  // namespace

TEST_CASE("functions without templates accept any prepared optimizer, schedule and loader") {
  const auto run = [](auto sgd_or_adam) {
    Accelerator accelerator({.cpu = true});
    OneWeight net;
    auto plain = sgd_or_adam(net->parameters());
    accelerate::optim::StepLR decay(plain, 1, 0.5);
    auto batches = std::vector<accelerate::data::Batch>{{torch::ones({2}, torch::kDouble), torch::ones({2})}};
    auto [model, optimizer, scheduler, own, list] = accelerator.prepare(net, plain, decay, counting(4, 2), batches);
    CHECK(train_with(accelerator, model, optimizer, scheduler, own) == 6);
    CHECK(train_with(accelerator, model, optimizer, scheduler, list) == 2);
    CHECK(scheduler->steps() == 3);
    return net->w.item<double>();
  };
  CHECK(run([](const auto& parameters) { return torch::optim::SGD(parameters, 1.0); }) == -(2 + 0.5 * 2 + 0.25 * 2));
  CHECK(run([](const auto& parameters) { return torch::optim::Adam(parameters, 1.0); }) ==
        doctest::Approx(-1.75).epsilon(1e-4));
}

TEST_CASE("a handle of a base class refers to the same prepared object") {
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, counting(4, 2));
  const accelerate::AnyModel any_model = model;
  CHECK(any_model.unwrap().get() == net.get());
  CHECK(any_model.parameters()[0].is_same(net->w));
  any_model.eval();
  CHECK_FALSE(net->is_training());
  CHECK(accelerator.prepare(any_model) == any_model);
  const accelerate::AnyOptimizer any_optimizer = optimizer;
  CHECK(&any_optimizer.param_groups() == &sgd.param_groups());
  const accelerate::AnyLoader<accelerate::data::Batch> any_loader = loader;
  CHECK(any_loader.size() == 2);
  any_loader.set_epoch(3);
  CHECK(loader->epoch() == 3);
  auto position = any_loader.begin();
  CHECK(position.info().index == 0);
  CHECK_FALSE(position.info().last);
  CHECK(any_loader.info().index == 0);
  CHECK((++position).info().last);
  CHECK((++position == std::default_sentinel));
  CHECK(any_loader.report().batches == 2);
  int64_t left = 0;
  for (auto& batch : any_loader.skip_first_batches(1)) left += batch.data.size(0);
  CHECK(left == 2);
  std::vector<accelerate::data::Batch> list{{torch::ones({3}), torch::ones({3})}};
  const accelerate::AnyLoader<accelerate::data::Batch> foreign = accelerator.prepare(list);
  CHECK(foreign.size() == 1);
  CHECK_THROWS_WITH_AS(foreign.set_epoch(1), "set_epoch: epoch is 1, but this loader does not count epochs",
                       accelerate::Error);
}

TEST_CASE("handles can be members of a class that exists before prepare()") {
  Training training;
  check_refused("AnyLoader", [&] { (void)training.steps(); });
  Accelerator accelerator({.cpu = true});
  OneWeight net;
  torch::optim::SGD sgd(net->parameters(), 1.0);
  training.prepare(accelerator, net, sgd);
  CHECK(training.steps() == 2);
}

TEST_CASE("every use of an empty handle is refused with its name and the remedy") {
  Accelerator accelerator({.cpu = true});
  const accelerate::PreparedModel<OneWeightImpl> model{};
  CHECK(model.is_empty());
  check_refused("PreparedModel", [&] { (void)model(full(1)); });
  check_refused("PreparedModel", [&] { (void)model->w; });
  check_refused("PreparedModel", [&] { (void)*model; });
  check_refused("PreparedModel", [&] { (void)model.parameters(); });
  check_refused("PreparedModel", [&] { (void)model.parameter_shards(); });
  check_refused("PreparedModel", [&] { model.train(); });
  check_refused("PreparedModel", [&] { model.eval(); });
  check_refused("PreparedModel", [&] { model.zero_grad(); });
  check_refused("PreparedModel", [&] { (void)model.unwrap(); });
  check_refused("PreparedModel", [&] { (void)accelerator.prepare(model); });
  check_refused("PreparedModel", [&] { (void)accelerator.accumulate(model); });
  check_refused("PreparedModel", [&] { (void)accelerator.clip_grad_norm_(model, 1.0); });

  const accelerate::PreparedOptimizer<torch::optim::SGD> optimizer{};
  check_refused("PreparedOptimizer", [&] { optimizer.step(); });
  check_refused("PreparedOptimizer", [&] { optimizer.zero_grad(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer->param_groups(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer.param_groups(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer.state(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer.step_was_skipped(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer.skip_flag(); });
  check_refused("PreparedOptimizer", [&] { (void)optimizer.unwrap(); });

  const accelerate::PreparedScheduler<accelerate::optim::StepLR> scheduler{};
  check_refused("PreparedScheduler", [&] { scheduler.step(); });
  check_refused("PreparedScheduler", [&] { (void)scheduler->steps(); });
  check_refused("PreparedScheduler", [&] { (void)scheduler.get_last_lr(); });
  check_refused("PreparedScheduler", [&] { (void)scheduler.state(); });
  check_refused("PreparedScheduler", [&] { (void)scheduler.unwrap(); });
  const accelerate::PreparedScheduler<accelerate::optim::ReduceLROnPlateau> plateau{};
  check_refused("PreparedScheduler", [&] { plateau.step(1.0); });

  const accelerate::PreparedLoader<accelerate::data::Loader> loader{};
  check_refused("PreparedLoader", [&] { (void)loader.begin(); });
  check_refused("PreparedLoader", [&] { (void)loader.size(); });
  check_refused("PreparedLoader", [&] { (void)loader.total_batch_size(); });
  check_refused("PreparedLoader", [&] { (void)loader.total_dataset_length(); });
  check_refused("PreparedLoader", [&] { (void)loader.info(); });
  check_refused("PreparedLoader", [&] { (void)loader.report(); });
  check_refused("PreparedLoader", [&] { (void)loader.dispatches(); });
  check_refused("PreparedLoader", [&] { loader.set_epoch(1); });
  check_refused("PreparedLoader", [&] { (void)loader.state(); });
  check_refused("PreparedLoader", [&] { loader.load_state({}); });
  check_refused("PreparedLoader", [&] { (void)loader.skip_first_batches(1); });
  check_refused("PreparedLoader", [&] { (void)loader->epoch(); });
  check_refused("PreparedLoader", [&] { (void)loader.unwrap(); });
  CHECK((loader == accelerate::PreparedLoader<accelerate::data::Loader>()));

  const accelerate::AnyLoader<accelerate::data::Batch> any = loader;
  CHECK(any.is_empty());
  check_refused("AnyLoader", [&] { (void)any.begin(); });
  check_refused("AnyLoader", [&] { (void)any.size(); });
  check_refused("AnyLoader", [&] { (void)any.info(); });
}

TEST_CASE("model.zero_grad() keeps the gradients within a window, first or last in the loop") {
  for (const bool shared_optimizer : {false, true})
    for (const bool zero_first : {false, true}) {
      INFO(shared_optimizer, zero_first);
      CHECK(gradients(shared_optimizer, zero_first) == std::vector<double>{1, 2, 1, 2});
    }
}

TEST_CASE("model.zero_grad() affects only the parameters of its model, with and without an optimizer") {
  on_ranks(2, [](Accelerator& accelerator) {
    OneWeight net, other, alone;
    torch::optim::SGD both({net->w, other->w}, 1.0);
    auto [model, second, third, optimizer] = accelerator.prepare(net, other, alone, both);
    accelerator.backward((model(full(1)) + second(full(1)) + third(full(1))).sum());
    model.zero_grad();
    third.zero_grad(/*set_to_none=*/false);
    CHECK_FALSE(net->w.grad().defined());
    CHECK(other->w.grad().item<double>() == 1);
    CHECK(alone->w.grad().item<double>() == 0);
  });
}

TEST_CASE("model.zero_grad() also drops gradients of parameters without an optimizer, once per window") {
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  torch::nn::Sequential net(torch::nn::Linear(1, 1), torch::nn::Linear(1, 1));
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->ptr(1)->parameters(), 0.0));
  const torch::Tensor of_body = net->ptr(0)->parameters()[1];
  std::vector<double> sums;
  for (int micro = 0; micro < 6; ++micro) {
    auto window = accelerator.accumulate(model);
    model.zero_grad();
    accelerator.backward(model(torch::ones({1, 1})).sum());
    sums.push_back(of_body.grad().item<double>());
    optimizer.step();
  }
  for (size_t i = 2; i < sums.size(); ++i) CHECK(sums[i] == doctest::Approx(sums[i - 2]));
  CHECK(sums[1] == doctest::Approx(2 * sums[0]));
}

TEST_CASE("Accelerator::skip_first_batches() accepts a type-erased loader") {
  Accelerator accelerator({.cpu = true});
  const accelerate::AnyLoader<accelerate::data::Batch> loader = accelerator.prepare(counting(6, 2));
  int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : accelerator.skip_first_batches(loader, 1)) ++batches;
  CHECK(batches == 2);
}

TEST_CASE("no part of an Accelerator can be copied or moved out of it") {
  CHECK_FALSE(std::is_constructible_v<accelerate::ProcessInfo, Accelerator&>);
  CHECK_FALSE(std::is_constructible_v<accelerate::ProcessInfo, Accelerator>);
  CHECK_FALSE(std::is_constructible_v<accelerate::Checkpoints, Accelerator>);
  CHECK_FALSE(std::is_constructible_v<accelerate::TrackingFacade, Accelerator&>);
  CHECK_FALSE(std::is_constructible_v<accelerate::TrackingFacade, Accelerator>);
  CHECK_FALSE(std::is_assignable_v<accelerate::ProcessInfo&, Accelerator&>);
  CHECK_FALSE(std::is_assignable_v<accelerate::ProcessInfo&, Accelerator>);
  CHECK_FALSE(std::is_assignable_v<accelerate::Checkpoints&, Accelerator>);
  CHECK_FALSE(std::is_assignable_v<accelerate::TrackingFacade&, Accelerator>);
  CHECK(std::is_move_constructible_v<Accelerator>);
  CHECK(std::is_move_assignable_v<Accelerator>);
  CHECK_FALSE(std::is_copy_constructible_v<Accelerator>);
}
