// SPDX-License-Identifier: Apache-2.0
// fashion_resnet: ResNet-18 on Fashion-MNIST, as in "Dive into Deep Learning". Batch size and learning rate scale with
// the number of ranks and devices. Without --data-dir it trains on the included subset.
#include <ATen/DeviceAccelerator.h>
#include <fmt/ranges.h>

#include <accelerate/accelerate.hpp>
#include <accelerate/nn/data_parallel.hpp>
#include <algorithm>

#include "animator.hpp"
#include "command_line.hpp"
#include "devices_of_rank.hpp"
#include "resnet18.hpp"

namespace data = accelerate::data;

namespace {

struct Options {
  std::string data_dir = "examples/data/fashion-mnist";
  int64_t num_devices = 1;
  int64_t num_epochs = 10;
  int64_t batch_size = 256;
  double lr = 0.1;
  uint64_t seed = 42;
  std::string svg;
  bool quick = false;
};

/// The devices of this rank; other ranks of its machine have other devices.
std::vector<torch::Device> devices_of(const accelerate::Accelerator& accelerator, int64_t count) {
  const torch::Device own = accelerator.device();
  const auto hosts = accelerator.gather_object(accelerator.place().host);
  const int64_t ranks = std::ranges::count(hosts, accelerator.place().host);
  return devices_of_rank(own, count, ranks, own.is_cpu() ? 0 : at::accelerator::deviceCount());
}

/// Returns "[cpu, cpu]", the devices of all ranks.
std::string names_of_all(const accelerate::Accelerator& accelerator, const std::vector<torch::Device>& devices) {
  std::vector<std::string> mine;
  for (const auto& device : devices) mine.push_back(device.str());
  return fmt::format("[{}]", fmt::join(accelerator.gather_object(fmt::format("{}", fmt::join(mine, ", "))), ", "));
}

template <typename Model, typename Loader>
double evaluate_accuracy(accelerate::Accelerator& accelerator, Model& model, Loader& loader) {
  const torch::NoGradGuard no_grad;
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

data::Loader images(const Options& options, data::Split split, int64_t batch_size) {
  auto source = data::fashion_mnist(options.data_dir, {}, split).source();
  if (options.quick) source = data::take(source, 128);
  return {source, {.batch_size = batch_size, .shuffle = split == data::Split::train}};
}

void train(const Options& options) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(options.seed);
  const auto devices = devices_of(accelerator, options.num_devices);
  const int64_t batch_size = options.batch_size * options.num_devices;
  const double lr = options.lr * static_cast<double>(accelerator.num_processes() * options.num_devices);

  auto net = resnet18();
  accelerate::DataParallel parallel(net, devices);
  torch::optim::SGD sgd(parallel.parameters(), lr);
  auto [model, optimizer, loader, test_loader] = accelerator.prepare(
      parallel, sgd, images(options, data::Split::train, batch_size), images(options, data::Split::test, batch_size));

  const double rate = sgd.param_groups()[0].options().get_lr();
  accelerator.print("batch {}, learning rate {:g}\n", loader.total_batch_size(), rate);
  Timer timer;
  Animator animator("test accuracy", options.num_epochs, options.svg);
  accelerator.on_main_process([&] { animator.write(); });
  double accuracy = 0;
  for (int64_t epoch = 0; epoch < options.num_epochs; ++epoch) {
    timer.start();
    for (auto& [images, labels] : loader) {
      optimizer.zero_grad();
      auto loss = torch::nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
    }
    timer.stop();
    accuracy = evaluate_accuracy(accelerator, model, test_loader);
    accelerator.on_main_process([&] { animator.add(accuracy); });
  }
  const auto names = names_of_all(accelerator, devices);
  accelerator.on_main_process(
      [&] { fmt::print("test accuracy {:.2f}, {:.1f} s/epoch, on {}\n", accuracy, timer.average(), names); });
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains ResNet-18 on Fashion-MNIST");
  const auto some = CLI::Range(int64_t{1}, int64_t{1'000'000});
  app.add_option("--data-dir", options.data_dir, "Folder with the four IDX files, gzipped or not")
      ->capture_default_str();
  app.add_option("--num_devices", options.num_devices, "Devices of each process, by DataParallel; on the CPU: threads")
      ->check(some)
      ->capture_default_str();
  app.add_option("--num_epochs", options.num_epochs, "Passes over the training set")
      ->check(some)
      ->capture_default_str();
  app.add_option("--batch_size", options.batch_size, "Samples per step and device")->check(some)->capture_default_str();
  app.add_option("--lr", options.lr, "SGD's rate, times the number of all devices")
      ->check(command_line::positive_and_finite)
      ->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights and order")->capture_default_str();
  app.add_option("--svg", options.svg, "File for the curve, rewritten after each epoch");
  app.add_flag("--quick", options.quick, "128 images of each set only: checks that it runs, not that it learns");
  return command_line::run(app, argc, argv, [&] { train(options); });
}
