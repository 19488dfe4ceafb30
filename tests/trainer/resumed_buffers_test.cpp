// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include "tests/temporary_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::simulate;

namespace {

struct WithStatisticsImpl : torch::nn::Module {
  WithStatisticsImpl() { to(torch::kDouble); }
  torch::Tensor forward(const torch::Tensor& x) { return norm(x.reshape({-1, 1})).reshape({-1}); }
  torch::nn::BatchNorm1d norm = register_module("norm", torch::nn::BatchNorm1d(1));
};
TORCH_MODULE(WithStatistics);

struct StatisticsTrainer : accelerate::Trainer<WithStatistics> {
  using Trainer::Trainer;
  LossAndOutputs compute_loss(Model& model, const Inputs& inputs) override {
    const auto outputs = model(inputs["x"]);
    return {torch::mse_loss(outputs, inputs["labels"]), outputs};
  }
};

}  // namespace

TEST_CASE("a Trainer that is resumed after its last step evaluates with each rank's own statistics") {
  const testing::TemporaryFolder folder;
  const auto trained = [&](std::optional<std::filesystem::path> resume) {
    WithStatistics net;
    StatisticsTrainer trainer(net,
                              {.per_device_train_batch_size = 2,
                               .num_train_epochs = 1,
                               .learning_rate = 0.1,
                               .output_dir = folder / "run",
                               .save_strategy = IntervalStrategy::steps,
                               .save_steps = 100,
                               .resume_from_checkpoint = std::move(resume),
                               .disable_tqdm = true},
                              {.train_dataset = triples(12)});
    trainer.remove_callback<accelerate::PrinterCallback>();
    CHECK(trainer.train().global_step == 2);
    net->eval();
    const torch::NoGradGuard no_grad;
    auto by_itself = net->forward(torch::arange(4, torch::kDouble)).clone();
    return std::pair(by_itself, trainer.accelerator().gather(net->norm->running_mean.reshape({1})));
  };
  simulate(3, [&] {
    const auto [whole, means] = trained(std::nullopt);
    CHECK_FALSE(torch::equal(means[0], means[1]));
    const auto [resumed, means_again] = trained(folder / "run");
    CHECK(torch::equal(resumed, whole));
    CHECK(torch::equal(means_again, means));
  });
}
