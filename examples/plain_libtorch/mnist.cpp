// SPDX-License-Identifier: Apache-2.0
// ../mnist.cpp without Accelerate: plain LibTorch, one process, one device.
#include <zlib.h>

#include <fstream>

#include "../basic_net.hpp"
#include "../command_line.hpp"

namespace {

struct Options {
  std::string data_dir = "examples/data/mnist";
  int64_t epochs = 3;
  int64_t batch_size = 64;
  double lr = 1e-3;
  uint64_t seed = 42;
};

// LibTorch's own MNIST reader only supports the full, unzipped set.
torch::Tensor read_idx(const std::string& path, size_t header, const std::vector<int64_t>& shape) {
  gzFile file = gzopen((path + (std::ifstream(path).good() ? "" : ".gz")).c_str(), "rb");
  if (file == nullptr) throw std::runtime_error("cannot open " + path);
  std::vector<unsigned char> bytes, piece(1 << 16);
  for (int n = 0; (n = gzread(file, piece.data(), static_cast<unsigned>(piece.size()))) > 0;) {
    bytes.insert(bytes.end(), piece.begin(), piece.begin() + n);
  }
  gzclose(file);
  if (bytes.size() <= header) throw std::runtime_error(path + " is empty");
  return torch::from_blob(bytes.data() + header, static_cast<int64_t>(bytes.size() - header), torch::kUInt8)
      .reshape(shape)
      .clone();
}

struct Digits {
  torch::Tensor images, labels;
};

Digits read_digits(const std::string& folder, const std::string& part) {
  const auto images = read_idx(folder + "/" + part + "-images-idx3-ubyte", 16, {-1, 1, 28, 28});
  const auto labels = read_idx(folder + "/" + part + "-labels-idx1-ubyte", 8, {-1});
  return {images, labels.to(torch::kLong)};
}

torch::Tensor normalised(const torch::Tensor& images) { return (images.to(torch::kFloat) / 255 - 0.1307) / 0.3081; }

double accuracy(BasicNet& model, const Digits& digits, torch::Device device) {
  torch::NoGradGuard no_grad;
  model->eval();
  int64_t right = 0;
  for (int64_t first = 0; first < digits.labels.size(0); first += 1000) {
    const int64_t last = std::min(first + 1000, digits.labels.size(0));
    const auto images = normalised(digits.images.slice(0, first, last)).to(device);
    const auto labels = digits.labels.slice(0, first, last).to(device);
    right += model(images).argmax(1).eq(labels).sum().item<int64_t>();
  }
  model->train();
  return static_cast<double>(right) / static_cast<double>(digits.labels.size(0));
}

void train(const Options& options) {
  torch::manual_seed(options.seed);
  const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);

  BasicNet model;
  model->to(device);
  torch::optim::AdamW optimizer(model->parameters(), options.lr);
  const Digits digits = read_digits(options.data_dir, "train");
  const Digits test_digits = read_digits(options.data_dir, "t10k");
  const int64_t samples = digits.labels.size(0);
  const int64_t steps = (samples + options.batch_size - 1) / options.batch_size;

  for (int64_t epoch = 0; epoch < options.epochs; ++epoch) {
    const auto order = torch::randperm(samples);
    for (int64_t step = 0; step < steps; ++step) {
      const auto index = order.slice(0, step * options.batch_size, std::min((step + 1) * options.batch_size, samples));
      const auto images = normalised(digits.images.index_select(0, index)).to(device);
      const auto labels = digits.labels.index_select(0, index).to(device);
      optimizer.zero_grad();
      auto loss = torch::nll_loss(model(images), labels);
      loss.backward();
      optimizer.step();
      if ((step + 1) % 20 == 0 || step + 1 == steps) {
        std::printf("epoch %ld step %ld/%ld loss %.4f\n", epoch + 1, step + 1, steps, loss.item<double>());
      }
    }
  }
  std::printf("test accuracy %.4f\n", accuracy(model, test_digits, device));
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  CLI::App app("Trains BasicNet on MNIST with plain LibTorch");
  app.add_option("--data-dir", options.data_dir, "Folder with the four IDX files, gzipped or not")
      ->capture_default_str();
  app.add_option("--epochs", options.epochs, "Passes over the training set")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  app.add_option("--batch-size", options.batch_size, "Samples per step")->capture_default_str();
  app.add_option("--lr", options.lr, "AdamW's learning rate")->check(CLI::PositiveNumber)->capture_default_str();
  app.add_option("--seed", options.seed, "Seed of weights, order and dropout")->capture_default_str();
  return command_line::run(app, argc, argv, [&] { train(options); });
}
