// SPDX-License-Identifier: Apache-2.0
// custom_dataset: a data set of one's own, whose samples are a struct of one's own. A net learns to tell slope and
// height of a line from noisy points on it.
#include <accelerate/accelerate.hpp>
#include <random>

namespace data = accelerate::data;

namespace {

/// What a sample holds; a batch is the same struct with a dimension more.
struct Line {
  torch::Tensor points;  // [16]; in a batch [B, 16]
  torch::Tensor truth;   // [2]: slope and height; in a batch [B, 2]

  auto tree_members() { return std::tie(points, truth); }
};

class Lines {
 public:
  explicit Lines(int64_t size) : size_(size) {}
  [[nodiscard]] int64_t size() const { return size_; }
  /// const: several workers may call it at a time.
  [[nodiscard]] Line get(int64_t i) const {
    std::mt19937 random(static_cast<unsigned>(i));
    std::uniform_real_distribution<float> number(-1, 1);
    const float slope = number(random);
    const float height = number(random);
    std::vector<float> points;
    for (int x = -8; x < 8; ++x) points.push_back(slope * static_cast<float>(x) / 8 + height + number(random) / 5);
    return {torch::tensor(points), torch::tensor({slope, height})};
  }

 private:
  int64_t size_;
};

}  // namespace

int main() {
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
