// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the READMEs in accelerate/, each in the context that its text describes.
#include <accelerate/accelerate.hpp>
#include <accelerate/trainer/trainer.hpp>

#include "accelerate/data/loader_state.hpp"
#include "accelerate/gradient/gradient_reducer.hpp"
#include "accelerate/tracking/png.hpp"
#include "examples/basic_net.hpp"
#include "examples/generated_data.hpp"
#include "tests/data/sources/reads_png.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

#pragma GCC diagnostic ignored "-Wunused-variable"  // a block may declare a name without using it
#pragma GCC diagnostic ignored "-Wshadow"           // a block may use names of its surroundings

namespace base = accelerate::base;
namespace data = accelerate::data;
namespace fs = std::filesystem;
namespace gradient = accelerate::gradient;
namespace tracking = accelerate::tracking;
namespace tree = accelerate::tree;
using accelerate::ErrorKind;

namespace {

/// A temporary folder with data of every kind, with the names in data's README.
class FolderOfData {
 public:
  FolderOfData() : before_(fs::current_path()) {
    const auto recorded = before_ / "tests/data/sources/recorded";
    fs::create_directories(here_.path / "data");
    fs::create_directory_symlink(before_ / "examples/data/mnist", here_.path / "data/mnist");
    fs::create_directory_symlink(generated::cifar10(), here_.path / "data/cifar10");
    fs::create_symlink(generated::text(), here_.path / "train.bin");
    fs::create_symlink(recorded / "python.csv.npy", here_.path / "x.npy");
    fs::create_symlink(recorded / "python.csv.npy", here_.path / "y.npy");
    std::ofstream(here_.path / "iris.csv") << "length,width,species\n5.1,3.5,setosa\n6.2,2.9,virginica\n";
    fs::create_directories(here_.path / "train/grey");
    std::ofstream(here_.path / "train/grey/one.png", std::ios::binary)
        << tracking::png_of({.height = 2, .width = 2, .channels = 1, .pixels = {0, 80, 160, 240}});
    fs::current_path(here_.path);
  }
  ~FolderOfData() { fs::current_path(before_); }

 private:
  fs::path before_;
  testing::TemporaryFolder here_;
};

struct MyFiles {
  explicit MyFiles(std::string folder) : folder_(std::move(folder)) {}
  [[nodiscard]] int64_t size() const { return 64; }
  [[nodiscard]] std::pair<torch::Tensor, int64_t> get(int64_t i) const {
    return {torch::zeros({3, 4, 4}), i + static_cast<int64_t>(folder_.size())};
  }
  std::string folder_;
};

struct Texts {
  [[nodiscard]] int64_t size() const { return 10; }
  [[nodiscard]] torch::Tensor get(int64_t i) const { return torch::arange(i + 1); }
};

}  // namespace

TEST_CASE("base: an error and a log line") {
  const accelerate::RankContext place{.rank = 3, .world_size = 8, .host = "gpu-b"};
  const int64_t batch_size = 0;
  const std::string what = "the disk";
  std::string line;
  const auto before = base::set_log_handler([&](base::LogLevel, std::string_view text) { line = std::string(text); });
  const auto block = [&] {
    // block: accelerate/base/README.md: base
  };
  CHECK_THROWS_WITH(block(), "[rank 3 of 8, gpu-b] shard: batch_size is 0, must be at least 1");
  base::set_log_handler(before);
  CHECK(line == "[rank 3 of 8, gpu-b] the disk is slow");
}

TEST_CASE("comm: a group and its operations") {
  using accelerate::comm::ReduceOp;
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  const auto loss = torch::ones({1}), predictions = torch::ones({3, 2}), bucket = torch::ones({4});
  // block: accelerate/comm/README.md: comm
  pending.wait();
  CHECK(rows.equal(predictions));
  CHECK(node.size() == 1);
}

TEST_CASE("data: loaders of every kind of source") {
  const FolderOfData folder;
  const auto features = torch::rand({40, 2}), labels = torch::arange(40);
  int64_t samples = 0;
  const auto train = [&](const torch::Tensor& x, const torch::Tensor&) { samples += x.size(0); };
  // block: docs/how_to/load_data.md: Built-in sources
  CHECK(samples == digits.sample_count());
  if (testing::reads_png()) CHECK(images.begin()->data.sizes() == at::IntArrayRef({1, 3, 64, 64}));
  CHECK(table.begin()->data.sizes() == at::IntArrayRef({2, 2}));
  CHECK(named.begin()->numbers.at("length").equal(torch::tensor({5.1, 6.2}, torch::kDouble)));
  CHECK(named.begin()->numbers.at("species").equal(torch::tensor({0, 1})));
  CHECK(text.begin()->target.size(1) == 1024);
  CHECK(photos.begin()->data.size(0) == 64);
  CHECK(mine.size() == 2);
}

TEST_CASE("data: custom datasets, combinators, transforms") {
  const Texts my_texts;
  const std::pair my_struct(torch::zeros({40, 3, 32, 32}, at::kByte), torch::arange(40));
  const std::vector<double> mean{0.5, 0.5, 0.5}, std{0.2, 0.2, 0.2};
  // block: docs/how_to/load_data.md: Your own data set
  CHECK(files.size() == 2);
  for (auto& [batch, mask] : texts) CHECK(batch.sizes() == mask.sizes());
  CHECK(parts[1]->size() == 4);
  for (auto& [images, labels] : loader) CHECK(images.sizes() == at::IntArrayRef({36, 3, 32, 32}));
}

TEST_CASE("data: a resumed pass") {
  auto loader = data::from_tensors(torch::arange(10), {}, {.batch_size = 2});
  for (auto& batch : loader) {
    if (batch.data[0].item<int64_t>() == 4) break;
  }
  // block: docs/how_to/load_data.md: Resume within an epoch
  CHECK(loader.begin()->data[0].item<int64_t>() == 6);
}

TEST_CASE("prepared: a loop with a second loader beside it") {
  accelerate::Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  torch::nn::Linear net(1, 1);
  auto [model, optimizer, labelled, unlabelled] =
      accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1),
                          data::from_tensors({torch::ones({6, 1}), torch::ones({6, 1})}, {.batch_size = 2}),
                          data::from_tensors(torch::ones({2, 1}), {}, {.batch_size = 2}));
  // block: accelerate/prepared/README.md: Rules that several files rely on
  CHECK(accelerator.sync_gradients());
}

TEST_CASE("gradient: a gradient reducer by hand") {
  const accelerate::comm::Group group;
  const auto weight = torch::ones({2}, torch::requires_grad()), bias = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer(std::vector<torch::Tensor>{weight, bias}, 0.5);
  const auto loss = (weight.sum() + bias).sum();
  // block: accelerate/gradient/README.md: Use
  CHECK(weight.equal(torch::full({2}, 0.5)));
}

namespace {

/// Context for the blocks about modules.
struct Prepared {
  accelerate::Accelerator accelerator{};
  torch::nn::Sequential net{torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2)};
  accelerate::PreparedModel<torch::nn::SequentialImpl> model{accelerator.prepare(net)};
};

}  // namespace

TEST_CASE("nn: SyncBatchNorm, activation checkpointing") {
  Prepared prepared;
  auto& [accelerator, resnet, model] = prepared;
  // block: accelerate/nn/README.md: Use
  const auto net = std::make_shared<NetImpl>();
  for (int i = 0; i < 2; ++i) {
    net->blocks.push_back(
        net->register_module("block" + std::to_string(i), torch::nn::Sequential(torch::nn::Linear(8, 8))));
  }
  auto whole = accelerator.prepare(net);
  accelerator.backward(whole(torch::rand({4, 8})).sum());
  for (const auto& parameter : net->parameters()) CHECK(parameter.grad().defined());
}

TEST_CASE("profile: a profiled loop") {
  const testing::TemporaryFolder folder;
  const auto traces = (folder.path / "traces").string();
  Prepared prepared;
  auto& [accelerator, net, model] = prepared;
  auto loader = accelerator.prepare(data::from_tensors(torch::rand({64, 2}), {}, {.batch_size = 8}));
  const auto train = [&, &model = model](const data::Batch& batch) { model(batch.data).sum().backward(); };
  // block: docs/how_to/profile.md: Profile a run
  CHECK(profiler.summary().steps == 3);
  CHECK(fs::exists(folder.path / "traces/profile.json"));
}

TEST_CASE("tracking: the values of a run") {
  const testing::TemporaryFolder folder;
  const auto logs = folder.path.string();
  const accelerate::RankContext place;
  const int64_t step = 3;
  // block: docs/how_to/track.md: Track a run
  CHECK(testing::lines_of(folder.path / "digits/metrics.csv").size() == 2);
}

namespace of_trainer {

using Example = std::pair<torch::Tensor, int64_t>;

/// Bright and dark images.
struct DigitSet {
  [[nodiscard]] int64_t size() const { return 64; }
  [[nodiscard]] Example get(int64_t i) const { return {torch::full({1, 28, 28}, static_cast<double>(i % 2)), i % 2}; }
};
accelerate::Metrics accuracy(const accelerate::EvalPrediction& prediction) {
  const auto right = prediction.predictions.argmax(1).eq(prediction.label_ids["labels"]);
  return {{"accuracy", right.to(torch::kDouble).mean().item<double>()}};
}

// block: docs/how_to/trainer.md: Train with Trainer

}  // namespace of_trainer

TEST_CASE("trainer: training without an own loop") { of_trainer::train({}, {}); }

namespace of_tree {

// block: accelerate/tree/README.md: tree

}  // namespace of_tree

TEST_CASE("tree: batches of any structure") {
  const accelerate::comm::Group group;
  const int64_t rank = 0, world_size = 2;
  const of_tree::Sample sample{.image = torch::ones({2, 4}), .label = torch::zeros({2}), .name = "x"};
  const auto a = sample, b = sample;
  const std::pair batch(torch::ones({2}), torch::zeros({2, 3}));
  const std::vector<std::string> prompts{"one", "two", "three"};
  // block: accelerate/tree/README.md: tree, 2
  CHECK((halves.image.scalar_type() == at::kHalf));
  CHECK(joined.image.size(0) == 4);
  CHECK(all.second.equal(batch.second));
  CHECK(mine == std::vector<std::string>{"one", "two"});
}
