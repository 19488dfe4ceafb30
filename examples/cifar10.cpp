// SPDX-License-Identifier: Apache-2.0
// cifar10 [FOLDER]: a small convolutional net on CIFAR-10. Workers read ahead, and crop and flip images at random.
// FOLDER contains the binary version of the data set; without it, a small set of coloured noise is generated.
#include <accelerate/accelerate.hpp>

#include "command_line.hpp"
#include "generated_data.hpp"

namespace data = accelerate::data;
namespace nn = torch::nn;

namespace {

/// \param folder  CIFAR-10's binary version. If empty, a small set is generated.
void train(std::filesystem::path folder) {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);
  if (folder.empty()) accelerator.local_main_process_first([&] { folder = generated::cifar10(); });

  // Images are normalised after the crop, so that the padding is black, as in torchvision.
  constexpr data::ColourNormalisation as_they_are{{0, 0, 0}, {1, 1, 1}};
  const data::Normalize normalize({0.4914, 0.4822, 0.4465}, {0.2470, 0.2435, 0.2616});
  const auto source = [&](data::Split split) { return data::cifar10(folder, {}, split, as_they_are).source(); };
  data::LoaderOf train(data::transform(source(data::Split::train), data::RandomCrop({.size = {32, 32}, .padding = 4}),
                                       data::RandomHorizontalFlip(), normalize),
                       {.batch_size = 32, .shuffle = true, .num_workers = 2});
  data::LoaderOf test(data::transform(source(data::Split::test), normalize), {.batch_size = 100});

  nn::Sequential net(nn::Conv2d(nn::Conv2dOptions(3, 16, 3).stride(2).padding(1)), nn::ReLU(),
                     nn::Conv2d(nn::Conv2dOptions(16, 32, 3).stride(2).padding(1)), nn::ReLU(),
                     nn::AdaptiveAvgPool2d(1), nn::Flatten(), nn::Linear(32, 10));
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto [model, optimizer, train_loader, test_loader] = accelerator.prepare(net, adamw, train, test);

  for (int epoch = 1; epoch <= 3; ++epoch) {
    double loss_sum = 0;
    for (auto& [images, labels] : train_loader) {
      optimizer.zero_grad();
      auto loss = nn::functional::cross_entropy(model(images), labels);
      accelerator.backward(loss);
      optimizer.step();
      loss_sum += loss.item<double>();
    }
    accelerator.print("epoch {} loss {:.4f}; {}\n", epoch, loss_sum / static_cast<double>(train_loader.size()),
                      train_loader.report().text());
  }

  torch::NoGradGuard no_grad;
  model.eval();
  int64_t right = 0;
  int64_t seen = 0;
  for (auto& [images, labels] : test_loader) {
    const auto matches = accelerator.gather_for_metrics(model(images).argmax(1).eq(labels));
    right += matches.sum().item<int64_t>();
    seen += matches.size(0);
  }
  accelerator.print("{} of {} test images are right\n", right, seen);
}

}  // namespace

int main(int argc, char** argv) {
  std::filesystem::path folder;
  CLI::App app("Trains a small convolutional net on CIFAR-10");
  app.add_option("FOLDER", folder, "Folder with the binary version of CIFAR-10. If unset, a small set is generated.");
  return command_line::run(app, argc, argv, [&] { train(folder); });
}
