// SPDX-License-Identifier: Apache-2.0
// custom_dataset: a user-defined data set with a user-defined sample struct. A network learns slope and height of a
// line from points on it, with different noise in every epoch.
#include <accelerate/accelerate.hpp>
#include <random>

#include "command_line.hpp"

namespace data = accelerate::data;

namespace {

/// One sample; a batch is the same struct with one more dimension.
struct Line {
  torch::Tensor points;  // [16]; in a batch [B, 16]
  torch::Tensor truth;   // [2]: slope and height; in a batch [B, 2]

  auto tree_members() { return std::tie(points, truth); }
};

class Lines {
 public:
  explicit Lines(int64_t size) : size_(size) {}
  [[nodiscard]] int64_t size() const { return size_; }
  /// const, because several workers may call it concurrently. The optional argument `pass` is for random numbers.
  [[nodiscard]] Line get(int64_t i, const data::ReadContext& pass) const {
    std::mt19937 random(static_cast<unsigned>(i));
    std::uniform_real_distribution<float> number(-1, 1);
    const auto truth = torch::tensor({number(random), number(random)});
    const auto noise = 0.1 * torch::randn({16}, data::sample_generator(pass, i));
    return {truth[0] * torch::linspace(-1, 1, 16) + truth[1] + noise, truth};
  }

 private:
  int64_t size_;
};

void train() {
  accelerate::Accelerator accelerator;
  accelerator.set_seed(42);

  torch::nn::Sequential net(torch::nn::Linear(16, 32), torch::nn::ReLU(), torch::nn::Linear(32, 2));
  torch::optim::AdamW adamw(net->parameters(), 1e-2);
  auto lines = data::from_dataset(Lines(2000), {.batch_size = 20, .shuffle = true, .num_workers = 2});
  auto [model, optimizer, loader] = accelerator.prepare(net, adamw, lines);

  for (int epoch = 1; epoch <= 5; ++epoch) {
    double error = 0;
    int64_t seen = 0;
    for (auto& [points, truth] : loader) {
      optimizer.zero_grad();
      const auto found = model(points);
      auto loss = torch::mse_loss(found, truth);
      accelerator.backward(loss);
      optimizer.step();
      const auto errors = accelerator.gather_for_metrics((found - truth).detach().pow(2).mean(1));
      error += errors.sum().item<double>();
      seen += errors.size(0);
    }
    accelerator.print("epoch {} error {:.4f} of {} lines\n", epoch, error / static_cast<double>(seen), seen);
  }
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("Trains a net on a data set of its own sample type");
  return command_line::run(app, argc, argv, train);
}
