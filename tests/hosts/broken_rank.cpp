// SPDX-License-Identifier: Apache-2.0
// One rank of a job; fault_test.py breaks it or its host:
//   broken_rank FOLDER MEGABYTES [full_shard]
// Writes its process id and its progress to FOLDER/rankR, one line each, and at three points waits until
// FOLDER contains a file of that name: connect, step, rest. With full_shard the points are connect, step, backward,
// save. Its only parameter has MEGABYTES, so that a step can be interrupted during the transfer.
#include <unistd.h>

#include <accelerate/accelerate.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

namespace {

using accelerate::Accelerator;

class Diary {
 public:
  Diary(std::filesystem::path folder, int64_t rank)
      : folder_(std::move(folder)), out_(folder_ / fmt::format("rank{}", rank)) {
    say(fmt::format("process {}", ::getpid()));
  }

  void say(const std::string& line) { out_ << line << std::endl; }

  void wait_for(const std::string& name) {
    say("waits for " + name);
    while (!std::filesystem::exists(folder_ / name)) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    say("goes on to " + name);
  }

 private:
  std::filesystem::path folder_;
  std::ofstream out_;
};

struct WeightImpl : torch::nn::Module {
  explicit WeightImpl(int64_t elements) { w = register_parameter("w", torch::ones({elements})); }
  torch::Tensor forward() { return w.sum(); }
  torch::Tensor w;
};
TORCH_MODULE(Weight);

// Each collective of a step, and one of a save, is behind a point of its own.
void train_sharded(Diary& diary, int64_t megabytes, const std::filesystem::path& folder) {
  std::signal(SIGTERM, SIG_IGN);  // a launcher that ends the job waits for this rank's own error
  diary.wait_for("connect");
  Accelerator accelerator({.cpu = true, .sharding = accelerate::ShardingStrategy::full_shard});
  Weight net((megabytes << 20) / 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  diary.wait_for("step");
  const auto loss = model();
  diary.wait_for("backward");
  accelerator.backward(loss);
  optimizer.step();
  diary.wait_for("save");
  accelerator.save_model(model, folder / "model");
}

void train(Diary& diary, int64_t megabytes) {
  diary.wait_for("connect");
  Accelerator accelerator({.cpu = true});
  Weight net((megabytes << 20) / 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto [model, optimizer] = accelerator.prepare(net, sgd);
  for (const std::string place : {"step", "rest"}) {
    diary.wait_for(place);
    optimizer.zero_grad();
    accelerator.backward(model());
    optimizer.step();
  }
}

}  // namespace

int main(int argc, char** argv) {
  const auto process = accelerate::env::read_process_env(accelerate::env::current_variables());
  Diary diary(argv[1], process.rank);
  try {
    argc > 3 ? train_sharded(diary, std::stoll(argv[2]), argv[1]) : train(diary, std::stoll(argv[2]));
    diary.say("done");
  } catch (const accelerate::Error& error) {
    diary.say(error.what());
    fmt::print(stderr, "{}\n", error.what());
    return 3;
  }
}
