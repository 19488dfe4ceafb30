// SPDX-License-Identifier: Apache-2.0
// Saving never destroys user files, and loading is all or nothing.
#include "tests/testing.hpp"
//
#include <fstream>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"

using accelerate::Accelerator;
using testing::refusal;
using testing::SharedFolder;
namespace fs = std::filesystem;

namespace {

accelerate::AcceleratorOptions saving_to(const fs::path& project, std::optional<int64_t> limit = {}) {
  return {.cpu = true, .timeout = std::chrono::seconds(60), .project = {.project_dir = project, .total_limit = limit}};
}

struct OwnAdam : torch::optim::AdamW {
  using AdamW::AdamW;
};

struct SeenSoFar {
  int64_t number = 0;
  [[nodiscard]] std::string state() const { return std::to_string(number); }
  void load_state(const std::string& state) { number = std::stoll(state); }
};

/// A user-defined state with functions that throw on request.
struct Moody {
  bool on_save = false, on_load = false;
  [[nodiscard]] std::string state() const {
    if (on_save) throw std::runtime_error("no state today");
    return "mood";
  }
  void load_state(const std::string&) const {
    if (on_load) throw std::runtime_error("no such mood");
  }
};

void step_with(Accelerator& accelerator, auto& model, auto& optimizer) {
  optimizer.zero_grad();
  accelerator.backward(model(torch::ones({1}, torch::kDouble)).sum());
  optimizer.step();
}

}  // namespace

TEST_CASE("a subclass of a stock optimizer restores its saved state") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  OneWeight net(1);
  auto [model, optimizer] = accelerator.prepare(net, OwnAdam(net->parameters(), 0.1));
  const auto place = folder.path / "c";
  accelerator.save_state(place);  // no state yet
  step_with(accelerator, model, optimizer);
  const double first = net->w.item<double>();
  for (int i = 0; i < 5; ++i) step_with(accelerator, model, optimizer);
  accelerator.load_state(place);
  step_with(accelerator, model, optimizer);
  CHECK(net->w.item<double>() == first);
}

TEST_CASE("total_limit removes neither other folders nor links") {
  const SharedFolder folder;
  const auto parent = folder.path / "checkpoints";
  fs::create_directories(parent / "checkpoint_0");
  std::ofstream(parent / "checkpoint_0" / "notes.txt") << "mine";
  fs::create_directories(folder.path / "elsewhere");
  fs::create_directory_symlink(folder.path / "elsewhere", parent / "checkpoint_1");
  Accelerator accelerator(saving_to(folder.path, 1));
  auto model = accelerator.prepare(OneWeight(1));
  for (const char* name : {"checkpoint_2", "checkpoint_3"}) CHECK(accelerator.save_state() == parent / name);
  CHECK(fs::exists(parent / "checkpoint_0" / "notes.txt"));
  CHECK(fs::is_symlink(parent / "checkpoint_1"));
  CHECK_FALSE(fs::exists(parent / "checkpoint_2"));
}

TEST_CASE("a file with the next checkpoint's name is skipped; the highest possible number is an error") {
  const SharedFolder folder;
  const auto parent = folder.path / "checkpoints";
  fs::create_directories(parent);
  std::ofstream(parent / "checkpoint_0") << "a file";
  Accelerator accelerator(saving_to(folder.path));
  auto model = accelerator.prepare(OneWeight(1));
  CHECK(accelerator.save_state() == parent / "checkpoint_1");
  fs::create_directories(parent / "checkpoint_9223372036854775807");
  CHECK(refusal<std::exception>([&] { accelerator.save_state(); })
            .find("checkpoint_9223372036854775807 has the highest possible number, so no new one can follow; rename or "
                  "remove it") != std::string::npos);
}

TEST_CASE("save_model() throws in a checkpoint folder, and weights beside checkpoints count as none") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  OneWeight net(1);
  auto model = accelerator.prepare(net);
  const auto place = folder.path / "checkpoint_0";
  accelerator.save_state(place);
  const auto message = refusal<std::exception>([&] { accelerator.save_model(model, place); });
  CHECK(message.find("model.safetensors is a file of the checkpoint in ") != std::string::npos);
  CHECK(message.ends_with("which could not be loaded any more; save to another folder"));
  CHECK_THROWS_AS(accelerator.save(accelerate::prepared::TensorDict(), place / "model.safetensors"), accelerate::Error);
  // Files that another format of weights would replace belong to the checkpoint, too.
  CHECK(refusal<std::exception>([&] { accelerator.save_model(model, place, {.safe_serialization = false}); }) ==
        message);
  CHECK(fs::exists(place / "model.safetensors"));
  torch::NoGradGuard no_grad;
  net->w.fill_(5);
  accelerator.save_model(model, folder.path);
  CHECK(accelerator.load_state(folder.path).path == place);
  CHECK(net->w.item<double>() == 1);
}

TEST_CASE("a hook is removed once, although several copies of its handle remove it") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  auto model = accelerator.prepare(OneWeight(1));
  int called = 0;
  auto first = accelerator.register_save_state_pre_hook([&](const fs::path&) { called += 1; });
  auto other = accelerator.register_save_state_pre_hook([&](const fs::path&) { called += 10; });
  auto copy = first;
  first.remove();
  copy.remove();
  accelerator.save_state(folder.path / "c");
  CHECK(called == 10);
}

TEST_CASE("a checkpoint behind a symbolic link is replaced, and the link is kept") {
  const SharedFolder folder;
  fs::create_directories(folder.path / "disk");
  fs::create_directory_symlink(folder.path / "disk", folder.path / "link");
  Accelerator accelerator(saving_to(folder.path));
  auto model = accelerator.prepare(OneWeight(1));
  accelerator.save_state(folder.path / "link");
  CHECK(fs::is_symlink(folder.path / "link"));
  CHECK(fs::exists(folder.path / "disk" / "manifest.json"));
  accelerator.load_state(folder.path / "link");
}

TEST_CASE("a registered object that is passed as an rvalue is kept") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  auto model = accelerator.prepare(OneWeight(1));
  accelerator.register_for_checkpointing(SeenSoFar{41});
  accelerator.save_state(folder.path / "c");
  std::ifstream file(folder.path / "c" / "custom_checkpoint_0.pkl", std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), {}};
  CHECK(bytes.find("41") != std::string::npos);
}

TEST_CASE("objects that are registered in another order, or throw, leave everything else unchanged") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  const auto other = [&](auto&&... objects) {
    Accelerator accelerator(saving_to(folder.path));
    OneWeight net(7);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), counting(8, 2));
    accelerator.register_for_checkpointing(objects...);
    const auto message = refusal<std::exception>([&] { accelerator.load_state(place); });
    int64_t batches = 0;
    for (auto& batch : loader) batches += batch.data.size(0) > 0 ? 1 : 0;
    CHECK(batches == 4);
    CHECK(net->w.item<double>() == 7);
    return message;
  };
  SeenSoFar seen{3};
  Moody moody;
  {
    Accelerator accelerator(saving_to(folder.path));
    OneWeight net(1);
    auto [model, optimizer, loader] =
        accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1), counting(8, 2));
    struct AsTensors {
      [[nodiscard]] accelerate::prepared::TensorDict state_dict() const { return accelerate::prepared::TensorDict(); }
      void load_state_dict(const accelerate::prepared::TensorDict&) const {}
    } as_tensors;
    accelerator.register_for_checkpointing(seen, as_tensors);
    for (auto& batch : loader) {
      static_cast<void>(batch);
      accelerator.save_state(place);
      break;
    }
  }
  SeenSoFar first{10};
  CHECK(other(first, moody)
            .ends_with("the saved state of a registered object is tensors, expected bytes; were the objects "
                       "registered in another order?"));
  CHECK(first.number == 10);
}

TEST_CASE("a registered object that throws in load leaves weights and positions unchanged") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  OneWeight net(1);
  auto [model, loader] = accelerator.prepare(net, counting(8, 2));
  Moody moody;
  accelerator.register_for_checkpointing(moody);
  for (auto& batch : loader) {
    static_cast<void>(batch);
    accelerator.save_state(folder.path / "c");
    break;
  }
  for (auto& batch : loader) static_cast<void>(batch);
  torch::NoGradGuard no_grad;
  net->w.fill_(9);
  moody.on_load = true;
  CHECK(refusal<std::exception>([&] { accelerator.load_state(folder.path / "c"); }).find("no such mood") !=
        std::string::npos);
  CHECK(net->w.item<double>() == 9);
  int64_t batches = 0;
  for (auto& batch : loader) batches += batch.data.size(0) > 0 ? 1 : 0;
  CHECK(batches == 4);
}

TEST_CASE("a hook may remove itself") {
  const SharedFolder folder;
  Accelerator accelerator(saving_to(folder.path));
  auto model = accelerator.prepare(OneWeight(1));
  accelerate::prepared::HookHandle first, second;
  int calls = 0;
  first = accelerator.register_save_state_pre_hook([&](const fs::path&) {
    ++calls;
    first.remove();
  });
  second = accelerator.register_save_state_pre_hook([&](const fs::path&) { ++calls; });
  accelerator.save_state(folder.path / "c");
  CHECK(calls == 2);
  accelerator.save_state(folder.path / "c");
  CHECK(calls == 3);
}

TEST_CASE("all ranks throw at once if one rank cannot save") {
  const SharedFolder folder;
  const auto save = [&](const std::function<void(Accelerator&, Moody&)>& set_up,
                        const std::function<accelerate::checkpoint::SaveOptions(int64_t)>& options_of) {
    std::vector<std::string> messages(2);
    on_ranks(
        2,
        [&](Accelerator& accelerator) {
          auto model = accelerator.prepare(OneWeight(1));
          Moody moody;
          accelerator.register_for_checkpointing(moody);
          const auto rank = accelerator.process_index();
          if (rank == 1) set_up(accelerator, moody);
          messages[static_cast<size_t>(rank)] =
              refusal<std::exception>([&] { accelerator.save_state(folder.path / "c", options_of(rank)); });
        },
        saving_to(folder.path));
    return messages;
  };
  const auto plain = [](int64_t) { return accelerate::checkpoint::SaveOptions{}; };
  const auto thrown = save([](Accelerator&, Moody& moody) { moody.on_save = true; }, plain);
  CHECK(thrown[0].find("rank 1 failed: no state today") != std::string::npos);
  CHECK(thrown[1] == "no state today");
  const auto without_text = save(
      [](Accelerator& accelerator, Moody&) {
        accelerator.register_save_state_pre_hook([](const fs::path&) { throw std::runtime_error(""); });
      },
      plain);
  CHECK(without_text[0].find("rank 1 failed: ") != std::string::npos);
  const auto unlike = save([](Accelerator&, Moody&) {},
                           [](int64_t rank) { return accelerate::checkpoint::SaveOptions{.share_work = rank == 0}; });
  for (const auto& each : unlike) {
    CHECK(each.find(
              "rank 0 saves with async false, when_writer_busy wait, durable true, share_work true, rank 1 with async "
              "false, when_writer_busy wait, durable true, share_work false; give the same options on all ranks") !=
          std::string::npos);
  }
  const auto sizes =
      save([](Accelerator&, Moody&) {},
           [](int64_t rank) { return accelerate::checkpoint::SaveOptions{.max_shard_size = rank == 0 ? "5GB" : ""}; });
  for (const auto& each : sizes) {
    CHECK(each.find("durable true, share_work false, max_shard_size 5GB, rank 1 with async false") !=
          std::string::npos);
  }
  CHECK_FALSE(fs::exists(folder.path / "c"));
}
