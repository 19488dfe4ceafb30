// SPDX-License-Identifier: Apache-2.0
// Trains BasicNet on MNIST. The code is the same for one process, many processes and GPUs.
#include <accelerate/accelerate.hpp>

#include "basic_net.hpp"
#include "command_line.hpp"

namespace {

struct Options {
  std::string data_dir = "examples/data/mnist";
  int64_t epochs = 3;
  int64_t batch_size = 64;
  double lr = 1e-3;
  uint64_t seed = 42;
};

template <typename Model, typename Loader>
double accuracy(accelerate::Accelerator& accelerator, Model& model, Loader& loader) {
  torch::NoGradGuard no_grad;
  model.eval();
  int64_t right = 0, seen = 0;
  for (auto& [images, labels] : loader) {
    const auto matches = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += matches.sum().template item<int64_t>();
    seen += matches.size(0);
  }
  model.train();
  return static_cast<double>(right) / static_cast<double>(seen);
}

void train(const Options& options) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(options.seed, {.device_specific = true});  // dropout differs between ranks, weights do not

  BasicNet net;
  torch::optim::AdamW adamw(net->parameters(), options.lr);
  using accelerate::data::Split;
  auto digits = accelerate::data::mnist(options.data_dir, {.batch_size = options.batch_size, .shuffle = true});
  auto test_digits = accelerate::data::mnist(options.data_dir, {.batch_size = 1000}, Split::test);

  auto [model, optimizer, loader, test_loader] = accelerator.prepare(net, adamw, digits, test_digits);

  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    int64_t step = 0;
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      ++step;
      if (step % 20 == 0 || step == loader.size()) {
        accelerator.print("epoch {} step {}/{} loss {:.4f}\n", epoch + 1, step, loader.size(), loss.item<double>());
      }
    }
  }
  const double result = accuracy(accelerator, model, test_loader);
  accelerator.on_main_process([&] { fmt::print("test accuracy {:.4f}\n", result); });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains BasicNet on MNIST");
  app.add_option("--data-dir", options.data_dir, "Folder with the four IDX files, gzipped or not")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(CLI::Range(int64_t{0}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per step and process")
      ->check(CLI::Range(int64_t{1}, int64_t{1'000'000}))
      ->capture_default_str();
  app.add_option("--lr", options.lr, "AdamW's learning rate")
      ->check(command_line::positive_and_finite)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, order and dropout")->capture_default_str();
  return command_line::run(app, argc, argv, [&] { train(options); });
}
