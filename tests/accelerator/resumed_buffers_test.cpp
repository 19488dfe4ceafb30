// SPDX-License-Identifier: Apache-2.0
// After load_state() each rank has its buffers of the checkpoint, before any forward.
#include "tests/testing.hpp"
//
#include <set>

#include "accelerate/checkpoint/read.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/temporary_folder.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using accelerate::SaveOptions;
using accelerate::simulate;
namespace fs = std::filesystem;

namespace {

/// A BatchNorm, and a buffer with equal values on all ranks.
struct WithStatisticsImpl : torch::nn::Module {
  WithStatisticsImpl() {
    table = register_buffer("table", torch::arange(3, torch::kFloat));
    const torch::NoGradGuard no_grad;
    for (auto& parameter : layers[1]->parameters()) parameter.fill_(0.25);
  }
  torch::Tensor forward(const torch::Tensor& x) { return layers->forward(x) + table[1]; }
  torch::nn::Sequential layers =
      register_module("layers", torch::nn::Sequential(torch::nn::BatchNorm1d(2), torch::nn::Linear(2, 1)));
  torch::Tensor table;
};
TORCH_MODULE(WithStatistics);

/// Two models of one rank: one learns, the other one is frozen and has its own statistics in training mode.
struct TwoModels {
  explicit TwoModels(const AcceleratorOptions& options, bool synchronised_norms = false) : accelerator(options) {
    for (auto& parameter : frozen->parameters()) parameter.set_requires_grad(false);
    if (synchronised_norms) accelerator.convert_sync_batchnorm(net);
    model.emplace(accelerator.prepare(net));
    other.emplace(accelerator.prepare(frozen));
    sgd.emplace(net->parameters(), 0.1);
    optimizer.emplace(accelerator.prepare(*sgd));
  }

  [[nodiscard]] torch::Tensor batch(int64_t step) const {
    const auto first = static_cast<double>(8 * (step * 5 + accelerator.process_index()));
    return torch::arange(first, first + 8, torch::kFloat).mul(1.7).sin().reshape({4, 2});
  }
  void micro_batch(int64_t step) {
    auto window = accelerator.accumulate(*model);
    accelerator.backward((*model)(batch(step)).square().mean());
    optimizer->step();
    optimizer->zero_grad();
    const torch::NoGradGuard no_grad;
    (*other)(batch(step + 100));
  }
  /// This rank's buffers, and its outputs with them.
  [[nodiscard]] std::vector<torch::Tensor> own_state() {
    const torch::NoGradGuard no_grad;
    std::vector<torch::Tensor> all;
    for (WithStatistics each : {net, frozen}) {
      each->eval();
      all.push_back(each->forward(batch(50)).clone());
      each->train();
      for (const auto& buffer : each->named_buffers()) all.push_back(buffer.value().clone());
    }
    return all;
  }

  Accelerator accelerator;
  WithStatistics net, frozen;
  std::optional<torch::optim::SGD> sgd;
  std::optional<decltype(std::declval<Accelerator&>().prepare(std::declval<WithStatistics&>()))> model, other;
  std::optional<decltype(std::declval<Accelerator&>().prepare(std::declval<torch::optim::SGD&>()))> optimizer;
};

bool equal_tensors(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  return std::ranges::equal(a, b, [](const auto& one, const auto& other) { return torch::equal(one, other); });
}

/// Saves after each micro-batch. A resumed job must equal the uninterrupted job: immediately, and after one
/// micro-batch.
void check_buffers_at_every_stop(const AcceleratorOptions& options, const SaveOptions& saving = {},
                                 bool synchronised = false) {
  constexpr int64_t last = 4;
  for (const int64_t ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const testing::TemporaryFolder folder;
    simulate(ranks, [&] {
      TwoModels whole(options, synchronised);
      std::vector<std::vector<torch::Tensor>> states;
      for (int64_t step = 0; step <= last; ++step) {
        whole.micro_batch(step);
        states.push_back(whole.own_state());
        whole.accelerator.save_state(folder / std::to_string(step), saving);
      }
      whole.accelerator.wait_for_checkpoint();
      for (int64_t step = 0; step < last; ++step) {
        CAPTURE(step);
        TwoModels resumed(options, synchronised);
        if (step % 2 == 1) resumed.micro_batch(70);  // earlier values must not remain
        resumed.accelerator.load_state(folder / std::to_string(step));
        CHECK(equal_tensors(resumed.own_state(), states.at(static_cast<size_t>(step))));
        resumed.micro_batch(step + 1);
        CHECK(equal_tensors(resumed.own_state(), states.at(static_cast<size_t>(step) + 1)));
      }
    });
  }
}

std::set<std::string> buffer_files_in(const fs::path& folder, const std::string& begin) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().filename().string().starts_with(begin)) names.insert(entry.path().filename().string());
  }
  return names;
}

}  // namespace

TEST_CASE("a resumed rank has its own BatchNorm statistics before any forward, of every model") {
  check_buffers_at_every_stop({.cpu = true});
}

TEST_CASE("a rank resumed within a window has its own BatchNorm statistics") {
  check_buffers_at_every_stop({.cpu = true, .gradient_accumulation_steps = 3});
}

TEST_CASE("a resumed rank has its own statistics without broadcast_buffers") {
  check_buffers_at_every_stop({.cpu = true, .broadcast_buffers = false});
}

TEST_CASE("a resumed rank has its own statistics with SyncBatchNorm") {
  check_buffers_at_every_stop({.cpu = true}, {}, /*synchronised=*/true);
}

TEST_CASE("a rank resumed from an asynchronous checkpoint has its own statistics") {
  check_buffers_at_every_stop({.cpu = true}, {.async = true, .durable = false, .share_work = true});
}

TEST_CASE("ranks that are resumed after no_sync() continue with their own buffers") {
  const testing::TemporaryFolder folder;
  simulate(2, [&] {
    TwoModels whole({.cpu = true});
    whole.micro_batch(0);
    const auto apart = [](TwoModels& job, int64_t step) {
      auto local = job.accelerator.no_sync(*job.model);
      job.accelerator.backward((*job.model)(job.batch(step)).square().mean());
    };
    apart(whole, 1);
    whole.optimizer->zero_grad();
    whole.accelerator.save_state(folder / "c");
    apart(whole, 2);
    TwoModels resumed({.cpu = true});
    resumed.accelerator.load_state(folder / "c");
    apart(resumed, 2);
    CHECK(equal_tensors(resumed.own_state(), whole.own_state()));
  });
}

TEST_CASE("a forward after a load broadcasts the buffers as in the saved job") {
  const testing::TemporaryFolder folder;
  simulate(2, [&] {
    TwoModels whole({.cpu = true});
    whole.micro_batch(0);
    whole.accelerator.save_state(folder / "c");
    const auto evaluate = [](TwoModels& job) {
      const torch::NoGradGuard no_grad;
      job.net->eval();
      auto out = (*job.model)(job.batch(9)).clone();
      job.net->train();
      return out;
    };
    const auto expected = evaluate(whole);
    evaluate(whole);  // the next forward would broadcast nothing
    whole.accelerator.load_state(folder / "c");
    CHECK(torch::equal(evaluate(whole), expected));
    const auto means = whole.accelerator.gather(whole.net->named_buffers()["layers.0.running_mean"].reshape({1, 2}));
    CHECK(torch::equal(means[0], means[1]));
  });
}

TEST_CASE("a rank's file contains only the buffers that differ from rank 0's") {
  const testing::TemporaryFolder folder;
  simulate(3, [&] {
    TwoModels job({.cpu = true});
    job.accelerator.save_state(folder / "equal");
    job.micro_batch(0);
    job.accelerator.save_state(folder / "apart");
  });
  CHECK(buffer_files_in(folder / "equal", "buffers").empty());
  CHECK(buffer_files_in(folder / "apart", "buffers") == std::set<std::string>{"buffers_1.bin", "buffers_2.bin"});
  const auto read = accelerate::checkpoint::read_checkpoint(folder / "apart", 1, torch::kCPU, "load_state");
  std::set<std::string> names;
  for (const auto& [name, tensor] : read.content.buffers) names.insert(name);
  CHECK(names == std::set<std::string>{"model.0/layers.0.running_mean", "model.0/layers.0.running_var",
                                       "model.1/layers.0.running_mean", "model.1/layers.0.running_var"});
}

TEST_CASE("all ranks have rank 0's buffers on another world size") {
  for (const bool broadcast : {true, false}) {
    CAPTURE(broadcast);
    const testing::TemporaryFolder folder;
    std::vector<torch::Tensor> rank_0_buffers;
    const AcceleratorOptions options{.cpu = true, .broadcast_buffers = broadcast};
    simulate(2, [&] {
      TwoModels job(options);
      for (int64_t step = 0; step < 2; ++step) job.micro_batch(step);
      job.accelerator.save_state(folder / "c");
      if (job.accelerator.is_main_process()) {
        for (const auto& buffer : job.net->named_buffers()) rank_0_buffers.push_back(buffer.value().clone());
      }
    });
    for (const int64_t ranks : {1, 3, 4}) {
      CAPTURE(ranks);
      simulate(ranks, [&] {
        TwoModels job(options);
        job.accelerator.load_state(folder / "c");
        std::vector<torch::Tensor> loaded;
        for (const auto& buffer : job.net->named_buffers()) loaded.push_back(buffer.value());
        CHECK(equal_tensors(loaded, rank_0_buffers));
        job.micro_batch(2);
      });
    }
  }
}

TEST_CASE("each machine's model file has rank 0's buffers, and each of its ranks restores its own") {
  const testing::TemporaryFolder folder;
  const AcceleratorOptions options{.cpu = true, .project = {.save_on_each_node = true}};
  simulate(2, [&] {
    TwoModels whole(options);
    whole.micro_batch(0);
    const auto state = whole.own_state();
    whole.accelerator.save_state(folder / "c");
    TwoModels resumed(options);
    resumed.accelerator.load_state(folder / "c");
    CHECK(equal_tensors(resumed.own_state(), state));
  });
}
