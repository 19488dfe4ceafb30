// SPDX-License-Identifier: Apache-2.0
// Compiles and runs the C++ blocks of the README and of accelerate/README.md, each in the context that its text
// describes; most of them on two ranks.
#include <accelerate/accelerate.hpp>
#include <accelerate/trainer/trainer.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>

#include "accelerate/data/sources/idx.hpp"
#include "examples/basic_net.hpp"
#include "tests/data/sources/idx_bytes.hpp"
#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

#pragma GCC diagnostic ignored "-Wunused-variable"  // a block may declare a name without using it
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"
#pragma GCC diagnostic ignored "-Wshadow"  // a block may use names of its surroundings

using accelerate::Accelerator;

namespace {

/// The first digits of the included subset.
accelerate::data::Batch first_digits(int64_t samples) {
  return accelerate::data::mnist("examples/data/mnist").source()->read(torch::arange(samples));
}
accelerate::data::Loader digits_of(int64_t samples, int64_t batch_size) {
  const auto [images, labels] = first_digits(samples);
  return accelerate::data::from_tensors(images, labels, {.batch_size = batch_size, .shuffle = true, .seed = 1});
}

/// The same digits as a torch::data data set.
struct Digits : torch::data::Dataset<Digits> {
  torch::data::Example<> get(size_t i) override {
    return {digits.data[static_cast<int64_t>(i)], digits.target[static_cast<int64_t>(i)]};
  }
  [[nodiscard]] std::optional<size_t> size() const override { return 32; }
  accelerate::data::Batch digits = first_digits(32);
};

/// Objects that the recipes assume.
struct Program {
  BasicNet net{};
  torch::optim::AdamW adamw{net->parameters(), 1e-3};
  accelerate::data::Loader digits = digits_of(64, 8);
  accelerate::data::Loader test_digits = digits_of(30, 8);
};

/// A working folder with 320 of the digits, so that a program trains for 5 steps and not for 222.
class FolderOfFewDigits {
 public:
  FolderOfFewDigits() : before_(std::filesystem::current_path()) {
    copy("train-images-idx3-ubyte", 3);
    copy("train-labels-idx1-ubyte", 1);
    std::filesystem::current_path(here_.path);
  }
  ~FolderOfFewDigits() { std::filesystem::current_path(before_); }
  FolderOfFewDigits(const FolderOfFewDigits&) = delete;
  FolderOfFewDigits& operator=(const FolderOfFewDigits&) = delete;

 private:
  void copy(const std::string& name, int64_t dimensions) {
    const std::filesystem::path folder("examples/data/mnist");
    const auto values =
        accelerate::data::read_idx(before_ / folder / (name + ".gz"), dimensions).narrow(0, 0, 320).contiguous();
    std::string bytes = test_files::word(0x0800U + static_cast<uint32_t>(dimensions));
    for (const int64_t size : values.sizes()) bytes += test_files::word(static_cast<uint32_t>(size));
    bytes.append(static_cast<const char*>(values.const_data_ptr()), values.nbytes());
    std::filesystem::create_directories(here_.path / folder);
    std::ofstream(here_.path / folder / name, std::ios::binary) << bytes;
  }

  std::filesystem::path before_;
  testing::TemporaryFolder here_;
};

template <typename Body>
void on_two_ranks(const Body& body) {
  accelerate::simulate(2, [&] {
    Program program;
    body(program);
  });
}

}  // namespace

// Whole programs: their headers are already included, so their main() can be a function. Unlike the real main(), it
// does not return 0 implicitly.
#define main() \
  not_made();  \
  static void body()
namespace first_page {
// block: README.md: Accelerate for C++
}
namespace first_tutorial {
// block: docs/tutorial/first_loop.md: The loop
}
namespace own_program {
// block: docs/tutorial/first_loop.md: Build your own program
}
namespace plain_libtorch {
// block: docs/migration/plain_libtorch.md: From plain LibTorch
}
namespace with_trainer {
// block: docs/migration/plain_libtorch.md: From plain LibTorch, 2
}

#undef main

TEST_CASE("the programs of the documentation train: the first page, the tutorial, plain LibTorch, a Trainer") {
  const FolderOfFewDigits folder;
  for (const auto program :
       {&first_page::body, &first_tutorial::body, &own_program::body, &plain_libtorch::body, &with_trainer::body}) {
    CHECK_NOTHROW(program());
  }
}

TEST_CASE("the start page of the site") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    Accelerator accelerator;
    // block: docs/index.md: Accelerate for C++
    CHECK(loader.size() > 0);
  });
}

TEST_CASE("a custom batch type") {
  accelerate::simulate(2, [] {
    Accelerator accelerator;
    // block: docs/how_to/batches.md: Use your own batch type
    CHECK(photos.size() == 2);  // 100 samples, 32 a batch, two ranks
  });
}

TEST_CASE("accumulation") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    // block: docs/how_to/accumulation.md: Accumulate gradients
    CHECK(accelerator.sync_gradients());
  });
}

TEST_CASE("metrics") {
  on_two_ranks([](Program& program) {
    Accelerator accelerator;
    auto [model, test_loader] = accelerator.prepare(program.net, program.test_digits);
    // block: docs/how_to/metrics.md: Compute metrics over all ranks
    CHECK(seen == 30);
  });
}

TEST_CASE("a schedule") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    Accelerator accelerator;
    // block: docs/how_to/schedules.md: Schedule the learning rate
    CHECK(schedule.get_last_lr()[0] == doctest::Approx(1e-2 / 25 / 1e4));
  });
}

TEST_CASE("clipping") {
  on_two_ranks([](Program& program) {
    Accelerator accelerator;
    auto [model, optimizer, loader] = accelerator.prepare(program.net, program.adamw, program.digits);
    for (auto& [images, labels] : loader) {
      // block: docs/how_to/clipping.md: Clip gradients
      CHECK(norm.item<double>() > 0);
      optimizer.zero_grad();
    }
  });
}

TEST_CASE("the loss of a large vocabulary") {
  accelerate::simulate(2, [] {
    struct TiedImpl : torch::nn::Module {
      torch::Tensor forward(const torch::Tensor& tokens) { return torch::tanh(token(tokens)); }
      torch::nn::Embedding token = register_module("token", torch::nn::Embedding(11, 6));
    };
    const auto net = std::make_shared<TiedImpl>();
    Accelerator accelerator;
    auto model = accelerator.prepare(net);
    const auto tokens = torch::arange(8).reshape({2, 4}), next_tokens = tokens + 1;
    // block: docs/how_to/large_vocabulary.md: Compute the loss of a large vocabulary
    CHECK(net->token->weight.grad().abs().sum().item<double>() > 0);
  });
}

TEST_CASE("pipeline stages") {
  accelerate::simulate(2, [] {
    double loss = 1;
    const int64_t stages = 2;
    const auto points = torch::sin(torch::arange(3200.0 * 16).reshape({3200, 16}));
    const auto batches = accelerate::data::from_tensors(points, points.narrow(1, 0, 2), {.batch_size = 32});
    {
      // block: docs/how_to/pipeline_parallel.md: Train a model in pipeline stages
      CHECK(output.defined() == accelerator.is_last_process());
    }
    CHECK(loss < 0.3);
  });
  torch::nn::Sequential layers(torch::nn::Linear(16, 64), torch::nn::ReLU(), torch::nn::Linear(64, 64),
                               torch::nn::ReLU(), torch::nn::Linear(64, 2));
  const auto two_layers = [] { return torch::nn::Sequential(torch::nn::Linear(4, 4), torch::nn::Linear(4, 1)); };
  // block: docs/how_to/pipeline_parallel.md: Divide the layers
  CHECK(options.layer_costs.size() == layers->size());
  // block: docs/how_to/pipeline_parallel.md: Stages on several devices of one process
  CHECK(local.forward(torch::ones({3, 4})).size(0) == 3);
}

namespace {

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int64_t width) : inner(register_module("inner", torch::nn::Linear(width, width))) {}
  torch::Tensor forward(const torch::Tensor& x) { return x + torch::relu(inner(x)); }
  torch::nn::Linear inner;
};
TORCH_MODULE(Block);

}  // namespace

TEST_CASE("pipelines over lists of modules") {
  accelerate::comm::run_threads(2, [](const accelerate::comm::Group& group) {
    // block: docs/how_to/pipeline_parallel.md: Build the model from a list of modules
    CHECK(large.layers_per_stage().size() == 2);
    const auto names = small.named_parameters().keys();
    if (group.rank() == 0) CHECK(names.front() == "0.weight");
    if (group.rank() == 1) CHECK(names.back() == "2.1.bias");
  });
}

TEST_CASE("memory of parameters after a sharded step") {
  accelerate::simulate(2, [] {
    accelerate::Accelerator accelerator({.cpu = true, .sharding = accelerate::ShardingStrategy::shard_grad_op});
    const auto net = std::make_shared<torch::nn::LinearImpl>(40, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    accelerator.backward(model(torch::ones({3, 40})).mean());
    optimizer.step();
    std::ostringstream weights_file;
    // block: docs/how_to/sharded_training.md: Read parameters after a step
    CHECK(values[0] == net->weight[0][0].item<float>());
    CHECK(weights_file.str().size() > 40 * 5 * sizeof(float));
  });
}

TEST_CASE("sharded parameters") {
  const testing::TemporaryFolder folder;
  const auto run_folder = folder.path / "run";
  on_two_ranks([&](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    // block: docs/how_to/sharded_training.md: Train with sharded parameters
    CHECK(plan.find(" on 2 ranks, ") != std::string::npos);
    float largest = 0;
    // block: docs/how_to/sharded_training.md: Use whole parameters
    CHECK(largest > 0);
    // block: docs/how_to/sharded_training.md: Build a model that is larger than the memory
    CHECK(accelerator.sharding_plan(large_model).find(" on 2 ranks, ") != std::string::npos);
  });
  CHECK(std::filesystem::exists(run_folder / "optimizer.bin"));
  // block: docs/how_to/sharded_training.md: Choose the units
  CHECK(options.fsdp_plugin.shard_units.size() == 2);
}

TEST_CASE("a sharded model with its parts in the memory of the host") {
  accelerate::simulate(2, [] {
    // block: docs/how_to/sharded_training.md: Keep parts in the memory of the host
    const auto net = std::make_shared<torch::nn::LinearImpl>(40, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = offloading.prepare(net, sgd);
    CHECK(offloading.sharding_plan(model).find(" on 2 ranks, ") != std::string::npos);
  });
}

TEST_CASE("replicas of a sharded model") {
  accelerate::simulate(8, [] {
    // block: docs/how_to/sharded_training.md: Replicate across machines
    const auto net = std::make_shared<torch::nn::LinearImpl>(40, 5);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto [model, optimizer] = accelerator.prepare(net, sgd);
    CHECK(accelerator.sharding_plan(model).find(" on 4 ranks, ") != std::string::npos);
  });
}

TEST_CASE("a checkpoint, and a second run that has nothing left to do") {
  const testing::TemporaryFolder folder;
  const auto run_folder = folder.path / "run";
  for (int start = 0; start < 2; ++start) {
    on_two_ranks([&](Program& program) {
      auto& [net, adamw, digits, test_digits] = program;
      // block: docs/how_to/checkpoints.md: Save and resume
      CHECK(epoch == 2);
      CHECK(loader->epoch() == 2);
    });
    CHECK(std::filesystem::exists(run_folder / "checkpoints/checkpoint_1"));
    CHECK(std::filesystem::exists(run_folder / "weights/model.safetensors"));
    CHECK_FALSE(std::filesystem::exists(run_folder / "checkpoints/checkpoint_2"));
  }
}

namespace {

int with_errors_and_logs(Accelerator& accelerator, const std::function<void(Accelerator&)>& train) {
  // block: docs/how_to/errors_and_logs.md: Handle errors and log
  return 0;
}

}  // namespace

TEST_CASE("errors and logs") {
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  Accelerator accelerator;
  CHECK(with_errors_and_logs(accelerator, [](Accelerator&) {}) == 0);
  const auto failing = [](accelerate::ErrorKind kind) {
    return [kind](Accelerator& here) { accelerate::base::fail(kind, here.place(), "train", "thrown by the test"); };
  };
  CHECK(with_errors_and_logs(accelerator, failing(accelerate::ErrorKind::data)) == 1);
  CHECK(with_errors_and_logs(accelerator, failing(accelerate::ErrorKind::peer)) == accelerate::resume_exit_code);
  accelerate::base::set_log_handler(before);
  CHECK(lines == std::vector<std::string>{"[rank 0] 1 ranks", "[rank 0] rank 0 is slow",
                                          "[rank 0] the same from each, rank 0 first"});
}

TEST_CASE("foreign loaders") {
  on_two_ranks([](Program& program) {
    Accelerator accelerator;
    auto model = accelerator.prepare(program.net);
    // block: docs/how_to/existing_loaders.md: Use an existing data loader
    CHECK(accelerator.prepare(sharded).size() == 2);
  });
}

TEST_CASE("an existing program") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    Accelerator accelerator;
    const auto images = first_digits(16).data;
    // block: docs/how_to/existing_program.md: Add data parallelism to an existing program
    accelerator.check_synchronized(model);
    CHECK(model.parameters()[0].grad().defined());
  });
}

TEST_CASE("results that are bit-equal to plain LibTorch") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    // block: docs/how_to/bit_equal.md: Get results that are bit-equal to plain LibTorch
    CHECK(optimizer.core().fused() == nullptr);
  });
}

TEST_CASE("a net in channels_last, and layers that add the bias within the product") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    // block: docs/how_to/speed.md: Convolution nets in channels_last
    CHECK((net->parameters()[0].suggest_memory_format() == at::MemoryFormat::ChannelsLast));
    // block: docs/how_to/speed.md: Linear layers that add the bias within the product
    CHECK(report.exchanged == std::vector<std::string>{"0", "2"});
  });
}

TEST_CASE("functions that take prepared objects") {
  on_two_ranks([](Program& program) {
    auto& [net, adamw, digits, test_digits] = program;
    Accelerator accelerator;
    // block: docs/how_to/functions.md: Pass prepared objects to functions
    CHECK(adamw.param_groups()[0].options().get_lr() == doctest::Approx(5e-4));
    // block: docs/how_to/functions.md: Pass prepared objects to functions, 2
    CHECK(part >= 0);
    CHECK(part <= 1);
    CHECK(part * 64 == doctest::Approx(std::round(part * 64)));  // of 64 samples
    CHECK(model->is_training());
    step(first_digits(4).data);
    accelerator.check_synchronized(model);
  });
}

TEST_CASE("a function that returns prepared objects") {
  on_two_ranks([](Program&) {
    Accelerator accelerator;
    // block: docs/explanation/ownership.md: Ownership and lifetimes
    accelerator.backward(model(first_digits(4).data).pow(2).mean());
    optimizer.step();
    accelerator.check_synchronized(model);
  });
}
