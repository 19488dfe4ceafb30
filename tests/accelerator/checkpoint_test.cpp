// SPDX-License-Identifier: Apache-2.0
// save_state() and load_state() on one rank: refusals, discovery and tolerated differences.
#include "tests/testing.hpp"
//
#include <fstream>

#include "accelerate/archive/checkpoint_folder.hpp"
#include "accelerate/archive/checksum.hpp"
#include "accelerate/archive/sink.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/checkpoint/torch_file.hpp"
#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/refusal.hpp"

using accelerate::Accelerator;
using testing::refusal;
using testing::SharedFolder;
namespace fs = std::filesystem;

namespace {

accelerate::AcceleratorOptions in(const fs::path& project, std::optional<int64_t> limit = {}) {
  return {.cpu = true, .project = {.project_dir = project, .total_limit = limit}};
}

torch::nn::Linear linear(double value, int64_t inputs = 2) {
  torch::nn::Linear net(inputs, 1);
  torch::NoGradGuard no_grad;
  net->weight.fill_(value);
  net->bias.fill_(value);
  return net;
}

/// Rewrites a torch.save file without one entry of its dict. Returns the original bytes.
std::string write_without(const fs::path& path, std::string_view left_out) {
  namespace checkpoint = accelerate::checkpoint;
  accelerate::archive::StringSink sink;
  {
    const checkpoint::TorchFile file(path, "test");
    checkpoint::TorchFileWriter writer("test");
    const auto copied = [&](const accelerate::archive::PickleValue& value, const auto& each) {
      if (file.is_tensor(value)) return writer.tensor(file.tensor(value, "t"), "t");
      const auto* dict = accelerate::archive::entries_of(value);
      if (dict == nullptr) return value;
      accelerate::archive::PickleEntries entries;
      for (const auto& [key, inner] : *dict) {
        const auto* name = key.template as<std::string>();
        if (name == nullptr || *name != left_out) entries.emplace_back(key, each(inner, each));
      }
      return checkpoint::py_dict(std::move(entries));
    };
    writer.write(sink, copied(file.root(), copied));
  }
  std::ofstream(path, std::ios::binary | std::ios::trunc) << sink.text();
  return sink.text();
}

/// Turns the folder into one that Hugging Face Accelerate could have written: without manifest and author.
void make_accelerates(const fs::path& folder) {
  fs::remove(folder / "manifest.json");
  write_without(folder / "random_states_0.pkl", "accelerate");
}

/// Turns the folder into one of an older version, without the window length.
void forget_length(const fs::path& folder) {
  const std::string window = write_without(folder / "window_0.bin", "of");
  auto manifest = accelerate::archive::manifest_of(folder, "test");
  for (auto& file : manifest.files) {
    if (file.name != "window_0.bin") continue;
    file.bytes = window.size();
    file.checksum = accelerate::archive::checksum_of(window);
  }
  std::ofstream(folder / "manifest.json") << write_manifest(manifest);
}

/// A user-defined object.
struct Counter {
  int64_t seen = 0;
  [[nodiscard]] std::string state() const { return std::to_string(seen); }
  void load_state(const std::string& state) { seen = std::stoll(state); }
};

// A const object cannot be loaded into, unless it was moved in.
using accelerate::prepared::Checkpointable;
using accelerate::prepared::RegisteredObject;
static_assert(Checkpointable<RegisteredObject<Counter&>> && Checkpointable<RegisteredObject<const Counter>>);
static_assert(!Checkpointable<RegisteredObject<const Counter&>>);
static_assert(Checkpointable<RegisteredObject<const std::shared_ptr<Counter>&>>);
static_assert(!Checkpointable<RegisteredObject<std::shared_ptr<const Counter>>>);

auto stream_of_eight() {
  const auto begin = [] {
    return [next = int64_t{0}]() mutable -> std::optional<int64_t> {
      return next < 8 ? std::optional(next++) : std::nullopt;
    };
  };
  return accelerate::data::StreamLoader(accelerate::data::make_stream(begin), {.batch_size = 2});
}

/// Returns the lines that a call logs.
template <typename Call>
std::vector<std::string> logged_by(const Call& call) {
  accelerate::base::reset_log_once();
  std::vector<std::string> lines;
  const auto before = accelerate::base::set_log_handler(
      [&](accelerate::base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  call();
  accelerate::base::set_log_handler(before);
  return lines;
}

}  // namespace

TEST_CASE("checkpoints are numbered and limited, the newest is loaded, and steps are counted") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path, 2));
  auto net = linear(1);
  auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  for (int i = 0; i < 3; ++i) {
    optimizer.zero_grad();
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    CHECK(accelerator.save_state() == folder.path / "checkpoints" / ("checkpoint_" + std::to_string(i)));
  }
  CHECK(accelerate::archive::numbered_checkpoints(folder.path / "checkpoints").size() == 2);
  const auto last = net->weight.detach().clone();
  optimizer.step();
  const auto loaded = accelerator.load_state();
  CHECK(loaded.path == folder.path / "checkpoints" / "checkpoint_2");
  CHECK(loaded.step == 3);
  CHECK(loaded.world_size == 1);
  CHECK(torch::equal(net->weight, last));
  // The parent folder of all checkpoints works, too.
  CHECK(accelerator.load_state(folder.path / "checkpoints").path == loaded.path);
}

TEST_CASE("steps that fp16 skipped do not count") {
  const SharedFolder folder;
  auto options = in(folder.path);
  options.mixed_precision = accelerate::Precision::fp16;
  options.grad_scaler.init_scale = 1024;
  {
    Accelerator accelerator(options);
    auto net = linear(1);
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
    const double inf = std::numeric_limits<double>::infinity();
    for (const double scale : {1.0, inf, 2.0, inf, 3.0}) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({1, 2})).sum() * scale);
      optimizer.step();
    }
    accelerator.save_state();
  }
  Accelerator accelerator(options);
  auto net = linear(0);
  auto prepared = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.5));
  CHECK(accelerator.load_state().step == 3);
}

TEST_CASE("a newer incomplete checkpoint is skipped with a log line, and refused by name") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto model = accelerator.prepare(linear(1));
  accelerator.save_state();
  accelerator.save_state();
  const auto checkpoints = folder.path / "checkpoints";
  std::ofstream(checkpoints / "checkpoint_1" / "model.safetensors", std::ios::app) << "x";
  const auto size = fs::file_size(checkpoints / "checkpoint_1" / "model.safetensors");
  const auto wrong = fmt::format("model.safetensors has {} bytes, expected {}", size, size - 1);
  const auto loaded = accelerator.load_state();
  CHECK(loaded.path == checkpoints / "checkpoint_0");
  CHECK(loaded.skipped_checkpoints == std::vector<std::string>{"checkpoint_1: " + wrong});
  CHECK(refusal([&] { accelerator.load_state(checkpoints / "checkpoint_1"); }) ==
        "load_state: " + (checkpoints / "checkpoint_1").string() + " is incomplete or damaged: " + wrong +
            "; the newest complete checkpoint in the same folder is " + (checkpoints / "checkpoint_0").string());
}

TEST_CASE("a manifest.json of another program beside checkpoints is ignored") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto model = accelerator.prepare(linear(1));
  accelerator.save_state();
  const auto checkpoints = folder.path / "checkpoints";
  std::ofstream(checkpoints / "manifest.json") << R"({"name": "a web app", "version": "1"})";
  CHECK(accelerator.load_state(checkpoints).path == checkpoints / "checkpoint_0");
}

TEST_CASE("a skipping loader in place of the prepared one is saved, also after the other handle is gone") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto [loader, other] = accelerator.prepare(counting(8, 2), counting(4, 2));
  loader = accelerator.skip_first_batches(loader, 1);
  for ([[maybe_unused]] auto& batch : loader) break;
  accelerator.save_state();
  loader.set_epoch(5);
  other.set_epoch(7);
  accelerator.load_state();
  CHECK(loader->epoch() == 0);
  CHECK(other->epoch() == 0);
  std::vector<int64_t> rest;
  for (auto& batch : loader) {
    for (const int64_t number : numbers(batch.data)) rest.push_back(number);
  }
  CHECK(rest == std::vector<int64_t>{4, 5, 6, 7});
}

TEST_CASE("a missing checkpoint folder is reported") {
  Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(linear(1));
  const std::string no_folder =
      ": no folder is given and AcceleratorOptions::project.project_dir is empty; give one of them";
  CHECK(refusal([&] { accelerator.save_state(); }).ends_with("save_state" + no_folder));
  CHECK(refusal([&] { accelerator.load_state(); }).ends_with("load_state" + no_folder));
  CHECK(refusal([&] { accelerator.load_state("/nowhere/c"); }).ends_with("load_state: /nowhere/c is not a directory"));
  const SharedFolder folder;
  CHECK(refusal([&] {
          accelerator.load_state(folder.path);
        }).ends_with("no complete checkpoint found in " + folder.path.string() + " (no folder checkpoint_N)"));
}

TEST_CASE("content that does not match the prepared objects is refused, and nothing changes") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  {
    Accelerator accelerator({.cpu = true});
    auto net = linear(1);
    auto handles = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.1), linear(1));
    accelerator.save_state(place);
  }
  const auto error_of = [&](auto prepare) {
    Accelerator accelerator({.cpu = true});
    auto handles = prepare(accelerator);
    return refusal([&] { accelerator.load_state(place); });
  };
  CHECK(error_of([](Accelerator& accelerator) { return accelerator.prepare(linear(2)); })
            .ends_with("the checkpoint has 2 models, 1 are prepared here; prepare the same objects as when it was "
                       "saved, in the same order"));
  CHECK(error_of([](Accelerator& accelerator) { return accelerator.prepare(linear(2), linear(2)); })
            .ends_with("the checkpoint has 1 optimizers, 0 are prepared here; prepare the same objects as when it was "
                       "saved, in the same order"));
  auto first = linear(2), other = linear(2, 3);
  CHECK(error_of([&](Accelerator& accelerator) {
          return accelerator.prepare(first, torch::optim::Adam(first->parameters(), 0.1), other);
        })
            .ends_with("load_state: model_1 is not the one that was saved: of another shape: weight ([1, 2] saved, [1, "
                       "3] here)"));
  CHECK(first->weight[0][0].item<double>() == 2);
  auto second = linear(2);
  CHECK(error_of([&](Accelerator& accelerator) {
          std::vector<torch::Tensor> weight{first->weight};
          return accelerator.prepare(first, torch::optim::Adam(weight, 0.1), second);
        }).ends_with("load_state: parameter group 0 of the saved optimizer has 2 parameters, this one has 1"));
  CHECK(first->weight[0][0].item<double>() == 2);
}

TEST_CASE("a schedule that the checkpoint does not contain is refused, except a schedule without a state") {
  using accelerate::optim::LinearLR;
  const SharedFolder folder;
  const auto job = [&](const std::function<void(Accelerator&, torch::optim::SGD&)>& act) {
    Accelerator accelerator({.cpu = true});
    auto net = linear(1);
    torch::optim::SGD sgd(net->parameters(), 0.1);
    auto handles = accelerator.prepare(net, sgd);
    act(accelerator, sgd);
    return sgd.param_groups()[0].options().get_lr();
  };
  job([&](auto& accelerator, auto&) { accelerator.save_state(folder.path / "without"); });
  const double rate = job([&](auto& accelerator, auto& sgd) {
    auto warm = accelerator.prepare(LinearLR(sgd, 0.1, 1.0, 5));
    CHECK(refusal([&] { accelerator.load_state(folder.path / "without"); })
              .ends_with(
                  "load_state: the checkpoint has no position of scheduler 0, LinearLR; prepare the same "
                  "objects as when it was saved, in the same order, and create a new schedule after load_state()"));
    CHECK(warm->state().steps == 0);
  });
  CHECK(rate == doctest::Approx(0.01));
  job([&](auto& accelerator, auto& sgd) {  // applies the remedy of the error text
    accelerator.load_state(folder.path / "without");
    auto warm = accelerator.prepare(LinearLR(sgd, 0.1, 1.0, 5));
    CHECK(warm.get_last_lr()[0] == doctest::Approx(0.01));
    accelerator.save_state(folder.path / "with");
  });
  job([&](auto& accelerator, auto& sgd) {
    auto warm = accelerator.prepare(LinearLR(sgd, 0.1, 1.0, 5));
    CHECK_NOTHROW(accelerator.load_state(folder.path / "with"));
  });
  job([&](auto& accelerator, auto& sgd) {
    auto plateau = accelerator.prepare(torch::optim::ReduceLROnPlateauScheduler(sgd));
    CHECK_NOTHROW(accelerator.load_state(folder.path / "without"));
  });
}

TEST_CASE("a saved optimizer of another type is refused because of its state") {
  const SharedFolder folder;
  auto net = linear(1);
  Accelerator accelerator({.cpu = true});
  {
    auto [model, optimizer] = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.1));
    accelerator.backward(model(torch::ones({1, 2})).sum());
    optimizer.step();
    accelerator.save_state(folder.path / "c");
    accelerator.free_memory();
  }
  auto handles = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  CHECK(refusal([&] {
          accelerator.load_state(folder.path / "c");
        }).ends_with("load_state: the state of parameter 0 has 'step', SGD keeps momentum_buffer"));
}

TEST_CASE("a state that a schedule or loader rejects is refused, and nothing changes") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  const auto samples = [](int64_t count) {
    return accelerate::data::from_tensors(torch::ones({count, 2}), torch::arange(count), {.batch_size = 2});
  };
  {
    Accelerator accelerator({.cpu = true});
    auto [model, loader] = accelerator.prepare(linear(1), samples(8));
    for ([[maybe_unused]] auto& batch : loader) {
      accelerator.save_state(place);
      break;
    }
  }
  Accelerator accelerator({.cpu = true});
  auto net = linear(2);
  auto [model, loader] = accelerator.prepare(net, samples(10));
  CHECK(refusal([&] { accelerator.load_state(place); }).find("the state is of an epoch of 8 samples") !=
        std::string::npos);
  CHECK(net->weight[0][0].item<double>() == 2);
  CHECK(loader.state().consumed == 0);
  int64_t batches = 0;
  for ([[maybe_unused]] auto& batch : loader) ++batches;
  CHECK(batches == 5);
}

TEST_CASE("float32 weights survive a job with bfloat16 weights and masters to the last bit") {
  const SharedFolder folder;
  const double value = 1.0009765625;  // not representable in bfloat16
  {
    Accelerator accelerator({.cpu = true});
    auto model = accelerator.prepare(linear(value));
    accelerator.save_state(folder.path / "float");
  }
  {
    Accelerator accelerator({.cpu = true, .precision_policy = accelerate::precision::pure_bf16()});
    auto model = accelerator.prepare(linear(0));
    accelerator.load_state(folder.path / "float");
    CHECK((model->weight.scalar_type() == torch::kBFloat16));
    CHECK(model->weight[0][0].item<double>() == 1);
    accelerator.save_state(folder.path / "bfloat");
  }
  Accelerator accelerator({.cpu = true});
  auto net = linear(0);
  auto model = accelerator.prepare(net);
  accelerator.load_state(folder.path / "bfloat");
  CHECK(net->weight[0][0].item<double>() == value);
}

TEST_CASE("one of several tied weights in a Python file restores all of them") {
  const SharedFolder folder;
  struct Shares : torch::nn::Module {
    Shares() {
      register_module("first", first);
      register_module("last", first);
    }
    torch::Tensor forward(const torch::Tensor& x) { return first(first(x)); }
    torch::nn::Linear first{2, 2};
  };
  Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(std::make_shared<Shares>());
  const auto file = [&](const std::vector<std::string>& names) {
    accelerate::prepared::TensorDict dict;
    for (const auto& name : names) {
      dict.insert(name, name.ends_with("bias") ? torch::full({2}, 4.0F) : torch::full({2, 2}, 3.0F));
    }
    accelerator.save(dict, folder.path / "one.safetensors");
    return folder.path / "one.safetensors";
  };
  CHECK(accelerator.load_model(model, file({"last.weight", "last.bias"})) == accelerate::LoadedModel{});
  CHECK(model->first->weight.equal(torch::full({2, 2}, 3.0F)));
  CHECK(refusal([&] {
          accelerator.load_model(model, file({"last.weight"}));
        }).find("not saved: first.bias, last.bias") != std::string::npos);
}

TEST_CASE("one name suffices for a tensor with several names; an empty tensor has its own name") {
  const SharedFolder folder;
  struct Many : torch::nn::Module {
    Many() {
      const auto empty = torch::empty({0});
      for (int i = 0; i < 3000; ++i) register_parameter("w" + std::to_string(i), shared);
      register_buffer("none", empty);
      register_buffer("nothing", empty);
    }
    torch::Tensor shared = torch::zeros({2});
  };
  Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(std::make_shared<Many>());
  accelerate::prepared::TensorDict dict;
  dict.insert("w17", torch::full({2}, 3.0F));
  dict.insert("nothing", torch::empty({0}));
  accelerator.save(dict, folder.path / "one.safetensors");
  const auto loaded = accelerator.load_model(model, folder.path / "one.safetensors", false);
  CHECK(loaded.missing == std::vector<std::string>{"none"});
  CHECK(loaded.unexpected.empty());
  CHECK(model->shared.equal(torch::full({2}, 3.0F)));
}

TEST_CASE("a saved optimizer of another type without state is refused because of its options") {
  const SharedFolder folder;
  auto net = linear(1);
  const auto saved_by = [&](auto stock) {
    Accelerator accelerator({.cpu = true});
    auto handles = accelerator.prepare(net, stock);
    accelerator.save_state(folder.path / "c");
  };
  const auto load_error = [&] {
    Accelerator accelerator({.cpu = true});
    auto handles = accelerator.prepare(net, torch::optim::Adam(net->parameters(), 0.1));
    return refusal([&] { accelerator.load_state(folder.path / "c"); });
  };
  saved_by(torch::optim::SGD(net->parameters(), 0.1));
  CHECK(
      load_error().ends_with("load_state: group 0 of the saved optimizer has no option betas, which Adam has; it is of "
                             "another type"));
  saved_by(torch::optim::AdamW(net->parameters(), 0.1));
  CHECK(load_error().ends_with("option decoupled_weight_decay of group 0 is True, LibTorch's Adam knows only False"));
  saved_by(torch::optim::Adam(net->parameters(), 0.1));
  CHECK(load_error().empty());
}

TEST_CASE("if_any loads the newest checkpoint if there is one; incomplete ones are reported") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto net = linear(1);
  auto model = accelerator.prepare(net);
  CHECK(accelerator.load_state({}, {.if_any = true}).path.empty());
  CHECK(accelerator.load_state(folder.path / "nowhere", {.if_any = true}).path.empty());
  accelerator.save_state();
  CHECK(accelerator.load_state({}, {.if_any = true}).path == folder.path / "checkpoints" / "checkpoint_0");
  fs::remove(folder.path / "checkpoints" / "checkpoint_0" / "model.safetensors");
  CHECK(refusal([&] {
          accelerator.load_state({}, {.if_any = true});
        }).ends_with("(checkpoint_0: model.safetensors is missing)"));
}

TEST_CASE("the newest numbered folder that a load can use is loaded if there are no manifests") {
  const SharedFolder folder;
  Counter counter;
  auto net = linear(1);
  const auto prepared = [&](Accelerator& accelerator) {
    accelerator.register_for_checkpointing(counter);
    return accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
  };
  const auto checkpoints = folder.path / "checkpoints";
  {
    Accelerator accelerator(in(folder.path));
    auto handles = prepared(accelerator);
    for (int i = 0; i < 5; ++i) {
      accelerator.save_state();
      make_accelerates(checkpoints / ("checkpoint_" + std::to_string(i)));
    }
  }
  fs::remove(checkpoints / "checkpoint_4" / "custom_checkpoint_0.pkl");
  fs::remove(checkpoints / "checkpoint_3" / "optimizer.bin");
  fs::remove(checkpoints / "checkpoint_2" / "model.safetensors");
  fs::resize_file(checkpoints / "checkpoint_1" / "random_states_0.pkl", 40);
  Accelerator accelerator(in(folder.path));
  auto handles = prepared(accelerator);
  const auto loaded = accelerator.load_state();
  CHECK(loaded.path == checkpoints / "checkpoint_0");
  CHECK(loaded.world_size == 0);
  REQUIRE(loaded.skipped_checkpoints.size() == 4);
  CHECK(loaded.skipped_checkpoints[0] == "checkpoint_4: custom_checkpoint_0.pkl is missing");
  CHECK(loaded.skipped_checkpoints[1] == "checkpoint_3: optimizer.bin is missing");
  CHECK(loaded.skipped_checkpoints[2].find("checkpoint_2/manifest.json") != std::string::npos);
  CHECK(loaded.skipped_checkpoints[3].find("checkpoint_1/random_states_0.pkl") != std::string::npos);
}

TEST_CASE("a checkpoint that lost its manifest is not read as a Python checkpoint") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto net = linear(1);
  auto model = accelerator.prepare(net);
  accelerator.save_state();
  const auto place = folder.path / "checkpoints" / "checkpoint_0";
  fs::remove(place / "manifest.json");
  const auto wrong = (place / "manifest.json").string() + " cannot be opened: No such file or directory";
  CHECK(refusal([&] { accelerator.load_state(place); }) ==
        "load_state: " + place.string() + " is incomplete or damaged: load: " + wrong);
  CHECK(refusal([&] { accelerator.load_state(); }).ends_with("(checkpoint_0: load: " + wrong + ")"));
  make_accelerates(place);
  CHECK(accelerator.load_state(place).world_size == 0);
}

TEST_CASE("every reader finds the remains of a process that was killed while it replaced a checkpoint") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto model = accelerator.prepare(linear(1));
  accelerator.save_state();
  const auto checkpoints = folder.path / "checkpoints";
  const auto was_left_untouched = [&] {
    fs::rename(checkpoints / "checkpoint_0", checkpoints / "checkpoint_0.saving-0123abcd-old");
  };
  was_left_untouched();
  CHECK(accelerator.load_state().path == checkpoints / "checkpoint_0");
  was_left_untouched();
  CHECK(accelerator.load_state(checkpoints).path == checkpoints / "checkpoint_0");
  was_left_untouched();
  CHECK(accelerator.save_state() == checkpoints / "checkpoint_1");
  CHECK(accelerate::archive::numbered_checkpoints(checkpoints).size() == 2);
}

TEST_CASE("verify = false loads changed bytes, and strict = false loads other names") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  Accelerator accelerator(in(folder.path));
  auto net = linear(1);
  auto model = accelerator.prepare(net);
  accelerator.save_state(place);
  std::string bytes;
  {
    std::ifstream file(place / "model.safetensors", std::ios::binary);
    bytes.assign(std::istreambuf_iterator<char>(file), {});
  }
  const float two = 2;
  bytes.replace(bytes.size() - sizeof(two), sizeof(two), reinterpret_cast<const char*>(&two), sizeof(two));
  std::ofstream(place / "model.safetensors", std::ios::binary | std::ios::trunc) << bytes;
  CHECK(refusal([&] { accelerator.load_state(place); }).find("its bytes were changed") != std::string::npos);
  CHECK(net->weight.sum().item<double>() + net->bias.sum().item<double>() == 3);
  accelerator.load_state(place, {.verify = false});
  CHECK(net->weight.sum().item<double>() + net->bias.sum().item<double>() == 4);

  Accelerator other(in(folder.path));
  torch::nn::Linear without_bias(torch::nn::LinearOptions(2, 1).bias(false));
  auto of_other = other.prepare(without_bias);
  CHECK(refusal([&] { other.load_state(place, {.verify = false}); })
            .ends_with(" is not the one that was saved: saved, but not here: bias (strict = false passes over "
                       "names)"));
  other.load_state(place, {.verify = false, .strict = false});
  CHECK(torch::equal(without_bias->weight, net->weight));
}

TEST_CASE("the error lists all names that do not match") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  torch::nn::Sequential net;
  std::string all;
  for (int i = 0; i < 12; ++i) {
    net->push_back(torch::nn::Linear(torch::nn::LinearOptions(1, 1).bias(false)));
    all += fmt::format("{}{}.weight", i == 0 ? "" : ", ", i);
  }
  auto model = accelerator.prepare(net);
  accelerator.save(accelerate::prepared::TensorDict(), folder.path / "none.safetensors");
  CHECK(refusal([&] {
          accelerator.load_model(model, folder.path / "none.safetensors");
        }).ends_with("not saved: " + all + " (strict = false passes over names)"));
}

TEST_CASE("a load hook runs before anything changes, and an exception of it changes nothing") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto net = linear(1);
  auto model = accelerator.prepare(net);
  accelerator.save_state(folder.path / "c");
  {
    const torch::NoGradGuard no_grad;
    net->weight.fill_(5);
  }
  std::vector<fs::path> seen;
  auto hook = accelerator.register_load_state_pre_hook([&](const fs::path& path) {
    seen.push_back(path);
    CHECK(net->weight[0][0].item<double>() == 5);
    if (seen.size() == 1) throw std::runtime_error("not today");
  });
  CHECK_THROWS_WITH(accelerator.load_state(folder.path / "c"), "not today");
  CHECK(net->weight[0][0].item<double>() == 5);
  accelerator.load_state(folder.path / "c");
  CHECK(net->weight[0][0].item<double>() == 1);
  hook.remove();
  accelerator.load_state(folder.path / "c");
  CHECK(seen == std::vector<fs::path>{folder.path / "c", folder.path / "c"});
}

TEST_CASE("a load without prepared objects, and a manifest of a newer version, are refused") {
  const SharedFolder folder;
  {
    Accelerator accelerator(in(folder.path));
    auto model = accelerator.prepare(linear(1));
    accelerator.save_state();
    accelerator.save_state();
  }
  Accelerator accelerator(in(folder.path));
  CHECK(refusal([&] { accelerator.load_state(); })
            .ends_with("the checkpoint has 1 models, 0 are prepared here; prepare the same objects as when it was "
                       "saved, in the same order"));
  auto model = accelerator.prepare(linear(2));
  const auto newer = folder.path / "checkpoints" / "checkpoint_1" / "manifest.json";
  std::string text;
  {
    std::ifstream file(newer);
    text.assign(std::istreambuf_iterator<char>(file), {});
  }
  text.replace(text.find("\"version\": 1"), 12, "\"version\": 2");
  std::ofstream(newer) << text;
  const auto loaded = accelerator.load_state();
  CHECK(loaded.path == folder.path / "checkpoints" / "checkpoint_0");
  REQUIRE(loaded.skipped_checkpoints.size() == 1);
  CHECK(loaded.skipped_checkpoints[0].ends_with(
      "the manifest has version 2, versions up to 1 are read; use a newer version of "
      "this library"));
}

TEST_CASE("registered objects are saved and loaded in order: bytes, tensors, shared tensors") {
  const SharedFolder folder;
  auto net = linear(1);
  const auto make = [&](Counter& counter, std::shared_ptr<Counter> shared, auto& ema) {
    auto accelerator = std::make_unique<Accelerator>(accelerate::AcceleratorOptions{.cpu = true});
    accelerator->register_for_checkpointing(counter, shared, ema);  // the local pointer is destroyed, its object is not
    return accelerator;
  };
  Counter counter{7};
  auto shared = std::make_shared<Counter>(Counter{8});
  accelerate::optim::ExponentialMovingAverage ema(net);
  ema.update();
  make(counter, shared, ema)->save_state(folder.path / "c");
  Counter later;
  auto later_shared = std::make_shared<Counter>();
  accelerate::optim::ExponentialMovingAverage later_ema(net);
  make(later, later_shared, later_ema)->load_state(folder.path / "c");
  CHECK(later.seen == 7);
  CHECK(later_shared->seen == 8);
  CHECK(later_ema.updates() == 1);
}

TEST_CASE("a null shared pointer is refused, and objects beside it are not registered") {
  const SharedFolder folder;
  Accelerator accelerator({.cpu = true});
  Counter counter{7};
  CHECK_THROWS_WITH_AS(accelerator.register_for_checkpointing(counter, std::shared_ptr<Counter>()),
                       "register_for_checkpointing: a shared pointer points to no object; make the object first",
                       accelerate::Error);
  accelerator.save_state(folder.path / "c");
  // this Accelerator has no registered object
  CHECK(Accelerator({.cpu = true}).load_state(folder.path / "c").step == 0);
}

TEST_CASE("unprepared schedules, loaders and loss scales can be registered") {
  const SharedFolder folder;
  struct Own {
    torch::nn::Linear net = linear(1);
    torch::optim::SGD sgd{net->parameters(), 1.0};
    accelerate::optim::StepLR halving{sgd, 2, 0.5};
    accelerate::optim::ReduceLROnPlateau plateau{sgd};
    accelerate::data::Loader data = counting(8, 2);
    decltype(stream_of_eight()) stream = stream_of_eight();
    accelerate::precision::GradScaler scaler{{.init_scale = 8}, torch::kCPU, {}};
    Accelerator accelerator{{.cpu = true}};
    Own() { accelerator.register_for_checkpointing(halving, plateau, data, stream, scaler); }
  };
  const auto rest = [](auto& loader) {
    int64_t batches = 0;
    for ([[maybe_unused]] auto& batch : loader) ++batches;
    return batches;
  };
  {
    Own own;
    for (int i = 0; i < 3; ++i) own.halving.step();
    for (const double metric : {1.0, 0.5, 0.75}) own.plateau.step(metric);
    own.scaler.update(torch::ones({}));
    for ([[maybe_unused]] auto& batch : own.data) {
      for ([[maybe_unused]] auto& other : own.stream) {
        own.accelerator.save_state(folder.path / "c");
        break;
      }
      break;
    }
  }
  Own own;
  own.accelerator.load_state(folder.path / "c");
  CHECK(own.halving.steps() == 3);
  CHECK(own.halving.get_last_lr() == std::vector{0.5});
  CHECK(own.plateau.state().plateau == accelerate::state::PlateauState{.best = 0.5, .num_bad = 1, .cooldown = 0});
  CHECK(own.scaler.state().scale == 4);
  CHECK(rest(own.data) == 3);
  CHECK(rest(own.stream) == 3);

  Accelerator other({.cpu = true});
  other.register_for_checkpointing(own.data, own.plateau, own.halving, own.stream, own.scaler);
  CHECK(refusal([&] {
          other.load_state(folder.path / "c");
        }).ends_with("load_state: the saved state has no \"epoch\"; it was not written by this library"));
  accelerate::state::SchedulerState state;
  CHECK(refusal([&] { accelerate::prepared::read_json("no JSON", state); }) ==
        "load_state: the saved state of a registered object is not JSON, expected that of a schedule, a loader or a "
        "loss scale; were the objects registered in another order?");
}

TEST_CASE("LibTorch's StepLR continues at its saved step; its plateau has no state") {
  const SharedFolder folder;
  const auto run = [&](auto schedule_of, int from, int to, const fs::path& load) {
    Accelerator accelerator({.cpu = true});
    auto net = linear(1);
    torch::optim::SGD sgd(net->parameters(), 1.0);
    auto made = schedule_of(sgd);
    auto [model, optimizer, schedule] = accelerator.prepare(net, sgd, made);
    if (!load.empty()) accelerator.load_state(load);
    std::vector<double> rates;
    for (int i = from; i < to; ++i) {
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({1, 2})).sum());
      optimizer.step();
      schedule.step();
      rates.push_back(sgd.param_groups()[0].options().get_lr());
    }
    accelerator.save_state(folder.path / std::to_string(to));
    return rates;
  };
  const auto libtorchs = [](auto& sgd) { return torch::optim::StepLR(sgd, 3, 0.5); };
  const auto ours = [](auto& sgd) { return accelerate::optim::StepLR(sgd, 3, 0.5); };
  const auto whole = run(libtorchs, 0, 6, "");
  CHECK(whole == std::vector<double>{1, 1, 1, 0.5, 0.5, 0.5});
  run(libtorchs, 0, 2, "");
  CHECK(run(libtorchs, 2, 6, folder.path / "2") == std::vector<double>(whole.begin() + 2, whole.end()));
  CHECK(refusal([&] { run(ours, 2, 3, folder.path / "2"); })
            .ends_with("load_state: the saved state is of the schedule torch::optim::StepLR, this one is StepLR; make "
                       "the schedule that was saved"));
  run(ours, 0, 4, "");
  CHECK(refusal([&] { run(libtorchs, 4, 5, folder.path / "4"); })
            .ends_with("load_state: the saved state is of the schedule StepLR, this one is torch::optim::StepLR; make "
                       "the schedule that was saved"));

  Accelerator accelerator({.cpu = true});
  auto net = linear(1);
  torch::optim::SGD sgd(net->parameters(), 1.0);
  torch::optim::ReduceLROnPlateauScheduler libtorchs_plateau(sgd);
  auto handles = accelerator.prepare(net, sgd, libtorchs_plateau);
  const auto lines = logged_by([&] { accelerator.save_state(folder.path / "p"); });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].ends_with(
      "save_state: scheduler is LibTorch's ReduceLROnPlateauScheduler, which does not expose its state: it is not "
      "saved; take accelerate::optim::ReduceLROnPlateau"));
  torch::optim::StepLR halving(sgd, 3, 0.5);
  CHECK(refusal([&] { accelerate::prepared::load_state(halving, {.name = "torch::optim::StepLR", .steps = -2}); }) ==
        "load_state: the saved state of torch::optim::StepLR has -2 steps, must be -1 to 4294967294");
}

TEST_CASE("a log line names a loader position that cannot be saved; a sparse gradient is refused") {
  struct OwnSeed : std::vector<torch::Tensor> {
    void shard(int64_t, int64_t) {}
    [[nodiscard]] uint64_t seed() const { return 1; }
    void set_seed(uint64_t) {}
  };
  const SharedFolder folder;
  Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = 2});
  torch::nn::Embedding embedding(torch::nn::EmbeddingOptions(4, 2).sparse(true));
  std::vector<torch::Tensor> batches{torch::arange(4), torch::arange(4)};
  auto [model, optimizer, loader, seeded] =
      accelerator.prepare(embedding, torch::optim::SGD(embedding->parameters(), 0.1), batches, OwnSeed());
  const auto lines = logged_by([&] { accelerator.save_state(folder.path / "c"); });
  REQUIRE(lines.size() == 1);
  CHECK(lines[0].ends_with(
      "save_state: loader_1 does not report its position, which is not saved; save the number of its batches "
      "yourself, and after load_state() walk accelerator.skip_first_batches() of it"));
  for (auto& batch : loader) {
    {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(batch).sum());
    }
    CHECK(
        refusal([&] { accelerator.save_state(folder.path / "c"); })
            .ends_with("save_state: the accumulation window is open and the gradient of weight is sparse, which is not "
                       "saved; save where sync_gradients() is true"));
    break;
  }
}

TEST_CASE("a Python checkpoint without random states is loaded with a log line about them") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto net = linear(1);
  auto model = accelerator.prepare(net);
  accelerator.save_state(folder.path / "c");
  for (const char* file : {"manifest.json", "random_states_0.pkl"}) fs::remove(folder.path / "c" / file);
  const auto lines = logged_by([&] { accelerator.load_state(folder.path / "c"); });
  REQUIRE(lines.size() == 3);
  CHECK(lines[1].ends_with("load_state: the checkpoint has no random states"));
  CHECK(lines[2].ends_with(
      "/c does not contain the number of optimizer steps; LoadedState::step is 0 and counts from here"));
}

TEST_CASE("a rank without its gradients in the checkpoint cannot resume an open window") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  std::vector<std::string> messages(2);
  const auto within_a_window = [&](bool load) {
    on_ranks(2,
             [&](Accelerator& accelerator) {
               auto net = linear(1);
               auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
               if (load) {
                 auto& mine = messages[static_cast<size_t>(accelerator.process_index())];
                 mine = refusal([&] { accelerator.load_state(place); });
               } else {
                 {
                   auto window = accelerator.accumulate(model);
                   accelerator.backward(model(torch::ones({1, 2})).sum());
                 }
                 accelerator.save_state(place);
               }
             },
             {.cpu = true, .gradient_accumulation_steps = 2});
  };
  within_a_window(false);
  // Simulates machines with separate folders, of which rank 1 used another one.
  auto manifest = accelerate::archive::manifest_of(place, "load_state");
  std::erase_if(manifest.files, [](const auto& file) { return file.name.find("_1.") != std::string::npos; });
  std::erase_if(manifest.parts, [](const auto& part) { return part.index == 1; });
  std::erase_if(manifest.ranges, [](const auto& range) { return range.file.find("_1.") != std::string::npos; });
  for (const char* file : {"random_states_1.pkl", "window_1.bin"}) fs::remove(place / file);
  std::ofstream(place / "manifest.json") << write_manifest(manifest);
  within_a_window(true);
  for (const auto& mine : messages) {
    CHECK(mine.ends_with(
        "load_state: the checkpoint was saved within an accumulation window, and this rank's gradients are not in its "
        "folder; start the ranks on the machines where they were, or load one that was saved while sync_gradients() "
        "was true"));
  }
}

TEST_CASE("an open window resumes only with the same window length") {
  const SharedFolder folder;
  const auto job = [&](int64_t steps, const std::function<void(Accelerator&)>& act) {
    Accelerator accelerator({.cpu = true, .gradient_accumulation_steps = steps});
    auto model = accelerator.prepare(linear(3));
    {
      auto window = accelerator.accumulate(model);
      accelerator.backward(model(torch::ones({1, 2})).sum());
    }
    act(accelerator);
  };
  job(4, [&](auto& accelerator) { accelerator.save_state(folder.path / "within"); });
  job(4, [&](auto& accelerator) { CHECK_NOTHROW(accelerator.load_state(folder.path / "within")); });
  job(2, [&](auto& accelerator) {
    const auto message = refusal([&] { accelerator.load_state(folder.path / "within"); });
    CHECK(message.ends_with(
        "load_state: the checkpoint was saved after 1 of the 4 micro-batches of an accumulation window, and "
        "gradient_accumulation_steps is 2 here; set it to 4, or load one that was saved while sync_gradients() was "
        "true"));
    CHECK_FALSE(accelerator.sync_gradients());  // its own window is unchanged
  });
  forget_length(folder.path / "within");
  job(2, [&](auto& accelerator) { CHECK_NOTHROW(accelerator.load_state(folder.path / "within")); });
  job(1, [&](auto& accelerator) { accelerator.save_state(folder.path / "at its end"); });
  job(2, [&](auto& accelerator) { CHECK_NOTHROW(accelerator.load_state(folder.path / "at its end")); });
}

TEST_CASE("load_model() loads files of save_model(); names that do not match are listed or ignored") {
  const SharedFolder folder;
  Accelerator accelerator({.cpu = true});
  auto model = accelerator.prepare(linear(3));
  accelerator.save_model(model, folder.path);
  auto other = accelerator.prepare(linear(0));
  CHECK(accelerator.load_model(other, folder.path) == accelerate::LoadedModel{});
  CHECK(other->weight[0][1].item<double>() == 3);
  accelerate::prepared::TensorDict one;
  one.insert("weight", torch::full({1, 2}, 5.0F));
  one.insert("extra", torch::zeros({1}));
  accelerator.save(one, folder.path / "one.pt");
  CHECK(
      refusal([&] { accelerator.load_model(other, folder.path / "one.pt"); })
          .ends_with("load_model: the model is not the one that was saved: not saved: bias; saved, but not here: extra "
                     "(strict = false passes over names)"));
  CHECK(other->weight[0][1].item<double>() == 3);
  const auto loaded = accelerator.load_model(other, folder.path / "one.pt", /*strict=*/false);
  CHECK(loaded == accelerate::LoadedModel{{"bias"}, {"extra"}});
  CHECK(other->weight[0][1].item<double>() == 5);
  CHECK(torch::equal(Accelerator::load(folder.path / "one.pt")["weight"], one["weight"]));
}

TEST_CASE("one error lists all names and shapes that do not match, and nothing changes") {
  const SharedFolder folder;
  Accelerator accelerator({.cpu = true});
  torch::nn::Sequential net(linear(1), linear(1));
  auto model = accelerator.prepare(net);
  accelerate::prepared::TensorDict saved;
  saved.insert("0.weight", torch::full({1, 3}, 5.0F));
  saved.insert("0.bias", torch::full({2}, 5.0F));
  saved.insert("1.weight", torch::full({1, 2}, 5.0F));
  saved.insert("extra", torch::full({1}, 5.0F));
  accelerator.save(saved, folder.path / "saved.pt");
  const std::string shapes = "of another shape: 0.weight ([1, 3] saved, [1, 2] here), 0.bias ([2] saved, [1] here)";
  const std::string is_another = "load_model: the model is not the one that was saved: ";
  CHECK(refusal([&] {
          accelerator.load_model(model, folder.path / "saved.pt");
        }).ends_with(is_another + "not saved: 1.bias; saved, but not here: extra; " + shapes));
  CHECK(refusal([&] {
          accelerator.load_model(model, folder.path / "saved.pt", /*strict=*/false);
        }).ends_with(is_another + shapes));
  for (const auto& parameter : net->parameters()) CHECK(parameter.eq(1).all().item<bool>());
}

TEST_CASE("an asynchronous save is skipped on request while the previous one is being written") {
  const SharedFolder folder;
  Accelerator accelerator(in(folder.path));
  auto model = accelerator.prepare(linear(1));
  // For any disk error, each of many calls either writes a checkpoint or reports the failure.
  int64_t made = 0;
  for (int i = 0; i < 20; ++i) {
    made +=
        accelerator.save_state({}, {.async = true, .when_writer_busy = accelerate::WriterBusyPolicy::skip}).has_value()
            ? 1
            : 0;
  }
  accelerator.wait_for_checkpoint();
  CHECK(made >= 1);
  CHECK(accelerate::archive::numbered_checkpoints(folder.path / "checkpoints").size() == static_cast<size_t>(made));
}

TEST_CASE("PowerSGD's errors and factors are saved: bit-equal on two ranks, without errors on three") {
  const SharedFolder folder;
  const auto place = folder.path / "c";
  const accelerate::AcceleratorOptions options{
      .cpu = true,
      .comm_hook = accelerate::gradient::power_sgd_hook({.matrix_approximation_rank = 2, .start_step = 1})};
  const auto train = [&](int64_t ranks, int64_t from, int64_t to, bool save) {
    std::vector<torch::Tensor> weights(static_cast<size_t>(ranks));
    on_ranks(
        ranks,
        [&](Accelerator& accelerator) {
          torch::nn::Linear net(30, 20);
          auto [model, optimizer] = accelerator.prepare(net, torch::optim::SGD(net->parameters(), 0.1));
          if (from > 0) accelerator.load_state(place);
          for (int64_t step = from; step < to; ++step) {
            const auto generator = at::make_generator<at::CPUGeneratorImpl>(
                static_cast<uint64_t>(10 * step + accelerator.process_index()));
            optimizer.zero_grad();
            accelerator.backward(model(torch::randn({8, 30}, generator)).square().mean());
            optimizer.step();
            if (save && step == 2) accelerator.save_state(place);
          }
          weights[static_cast<size_t>(accelerator.process_index())] = net->weight.detach().clone();
        },
        options);
    return weights;
  };
  const auto through = train(2, 0, 6, true);
  const auto resumed = train(2, 3, 6, false);
  for (size_t rank = 0; rank < 2; ++rank) CHECK(torch::equal(resumed[rank], through[0]));
  CHECK(fs::exists(place / "comm_hooks_0.bin"));
  CHECK(fs::exists(place / "comm_hooks_1.bin"));
  const auto of_three = train(3, 3, 6, false);
  for (size_t rank = 1; rank < 3; ++rank) CHECK(torch::equal(of_three[rank], of_three[0]));
  CHECK(of_three[0].isfinite().all().item<bool>());
}
