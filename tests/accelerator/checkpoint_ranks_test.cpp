// SPDX-License-Identifier: Apache-2.0
// A run that is stopped after any step and resumed from its checkpoint is bit-identical to the uninterrupted run.
#include "tests/testing.hpp"
//
#include <unistd.h>

#include <set>

#include "tests/accelerator/ranks.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/world.hpp"

using accelerate::Accelerator;
using accelerate::AcceleratorOptions;
using testing::SharedFolder;
namespace fs = std::filesystem;

namespace {

struct SmallNetImpl : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) {
    x = torch::relu(bn(first(x)));
    return second(torch::dropout(x, 0.3, is_training()));
  }
  torch::nn::Linear first = register_module("first", torch::nn::Linear(6, 10));
  torch::nn::BatchNorm1d bn = register_module("bn", torch::nn::BatchNorm1d(10));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(10, 3));
};
TORCH_MODULE(SmallNet);

accelerate::data::Loader samples(int64_t count) {
  const auto x = torch::arange(count * 6, torch::kFloat).remainder(257).reshape({count, 6}) / 128.5 - 1;
  return accelerate::data::from_tensors(x, torch::arange(count).remainder(3), {.batch_size = 4, .shuffle = true});
}

/// All objects of a training that are saved.
struct Training {
  static constexpr int64_t kSamples = 44, kEpochs = 2;

  Training(const accelerate::comm::Group& group, const AcceleratorOptions& options)
      : accelerator(group, options), seeded(seed(accelerator)) {
    accelerator.register_for_checkpointing(ema);
  }
  static SmallNet seed(Accelerator& accelerator) {
    accelerator.set_seed(3, {.device_specific = true});
    return {};
  }

  /// Stops after that many micro-batches of the whole run and returns each loss. \param each  Called after each of
  /// them.
  std::vector<double> run(
      int64_t last, const std::function<void()>& each = [] {}) {
    std::vector<double> losses;
    for (; done < last && epoch < kEpochs; ++epoch) {
      for (auto& [x, label] : loader) {
        auto window = accelerator.accumulate(model);
        optimizer.zero_grad();
        auto loss = torch::cross_entropy_loss(model(x), label);
        accelerator.backward(loss);
        optimizer.step();
        scheduler.step();
        if (accelerator.sync_gradients()) ema.update();
        losses.push_back(loss.item<double>());
        ++done;
        each();
        if (done == last) return losses;
      }
    }
    return losses;
  }
  void load(const fs::path& folder) {
    const auto loaded = accelerator.load_state(folder);
    epoch = loaded.epoch;
  }
  /// The trained state as bytes.
  std::string learned(bool with_buffers = true) {
    torch::NoGradGuard no_grad;
    std::string bytes;
    const auto add = [&](const torch::Tensor& tensor) {
      const auto flat = tensor.detach().contiguous();
      bytes.append(static_cast<const char*>(flat.const_data_ptr()), flat.nbytes());
    };
    for (const auto& tensor : seeded->parameters()) add(tensor);
    if (with_buffers) {  // differ between ranks until the next synchronised forward
      for (const auto& tensor : seeded->buffers()) add(tensor);
    }
    for (const auto& tensor : ema.averages()) add(tensor);
    for (const auto& tensor : seeded->parameters()) {
      const auto found = adamw.state().find(tensor.unsafeGetTensorImpl());
      if (found == adamw.state().end()) continue;
      const auto& state = static_cast<const torch::optim::AdamWParamState&>(*found->second);
      add(state.exp_avg());
      add(state.exp_avg_sq());
      bytes += std::to_string(state.step());
    }
    return bytes + std::to_string(scheduler->steps()) + "," + std::to_string(accelerator.loss_scale());
  }

  Accelerator accelerator;
  SmallNet seeded;
  torch::optim::AdamW adamw{seeded->parameters(), torch::optim::AdamWOptions(0.01)};
  accelerate::optim::OneCycleLR one_cycle{adamw, 0.02, 40};
  accelerate::data::Loader data = samples(kSamples);
  decltype(accelerator.prepare(seeded)) model = accelerator.prepare(seeded);
  decltype(accelerator.prepare(adamw)) optimizer = accelerator.prepare(adamw);
  decltype(accelerator.prepare(one_cycle)) scheduler = accelerator.prepare(one_cycle);
  decltype(accelerator.prepare(data)) loader = accelerator.prepare(data);
  accelerate::optim::ExponentialMovingAverage ema{seeded, {.decay = 0.9}};
  int64_t epoch = 0, done = 0;
};

int64_t all_micro_batches() {
  Training whole(testing::world(), {.cpu = true});
  return static_cast<int64_t>(whole.run(1'000'000).size());
}

/// Saves after each micro-batch, resumes from each checkpoint in a separate run, and compares the final states.
void check_every_stop(AcceleratorOptions options, const accelerate::SaveOptions& saving = {}) {
  options.cpu = true;
  const SharedFolder folder(testing::world());
  const int64_t end = all_micro_batches();
  std::vector<double> losses;
  std::string learned;
  {
    Training whole(testing::world(), options);
    losses = whole.run(end, [&] { whole.accelerator.save_state(folder.path / std::to_string(whole.done), saving); });
    whole.accelerator.wait_for_checkpoint();
    learned = whole.learned();
  }
  {
    Training undisturbed(testing::world(), options);
    CHECK(undisturbed.run(end) == losses);  // saving changes nothing
    CHECK(undisturbed.learned() == learned);
  }
  for (int64_t stop = 1; stop < end; ++stop) {
    CAPTURE(stop);
    Training resumed(testing::world(), options);
    resumed.run(stop % 3);  // previous state must not leak through
    resumed.load(folder.path / std::to_string(stop));
    resumed.done = stop;
    CHECK(resumed.run(end) == std::vector<double>(losses.begin() + stop, losses.end()));
    CHECK(resumed.learned() == learned);
  }
}

}  // namespace

TEST_CASE("a resumed run equals an uninterrupted one: dropout, BatchNorm, AdamW, a schedule, an average") {
  check_every_stop({});
}

TEST_CASE("a run resumes identically if each rank has its own buffers") {
  check_every_stop({.broadcast_buffers = false});
}

TEST_CASE("a run resumes identically within a window of local gradients") {
  check_every_stop({.gradient_accumulation_steps = 3});
}

TEST_CASE("an fp16 run with a changing loss scale resumes identically") {
  check_every_stop({.mixed_precision = accelerate::Precision::fp16,
                    .gradient_accumulation_steps = 2,
                    .grad_scaler = {.init_scale = 1e9, .growth_interval = 3}});
}

TEST_CASE("a window resumes in another precision, with and without a loss scale") {
  using accelerate::Precision;
  struct Half {
    explicit Half(Precision precision, double scale)
        : accelerator(testing::world(), {.cpu = true,
                                         .mixed_precision = precision,
                                         .gradient_accumulation_steps = 2,
                                         .grad_scaler = {.init_scale = scale}}) {}
    void micro_batch() {
      auto window = accelerator.accumulate(model);
      optimizer.zero_grad();
      accelerator.backward(model(torch::ones({4, 3})).pow(2).mean());
      optimizer.step();
    }
    [[nodiscard]] torch::Tensor unscaled() const {
      return net->weight.grad().to(torch::kDouble) / accelerator.loss_scale();
    }
    Accelerator accelerator;
    torch::nn::Linear net{[] {
      torch::nn::Linear made(torch::nn::LinearOptions(3, 2).bias(false));
      torch::NoGradGuard no_grad;
      made->weight.fill_(0.25);
      return made;
    }()};
    torch::optim::SGD sgd{net->parameters(), torch::optim::SGDOptions(0.5)};
    decltype(accelerator.prepare(net)) model = accelerator.prepare(net);
    decltype(accelerator.prepare(sgd)) optimizer = accelerator.prepare(sgd);
  };
  const SharedFolder folder(testing::world());
  Half whole(Precision::no, 1);
  whole.micro_batch();
  const auto expected = whole.unscaled();
  whole.micro_batch();
  const std::vector<std::pair<Precision, Precision>> pairs{{Precision::fp16, Precision::no},
                                                           {Precision::fp16, Precision::bf16},
                                                           {Precision::no, Precision::fp16},
                                                           {Precision::fp16, Precision::fp16}};
  for (size_t i = 0; i < pairs.size(); ++i) {
    CAPTURE(i);
    const auto at = folder.path / std::to_string(i);
    Half before(pairs[i].first, 1024);
    before.micro_batch();
    before.accelerator.save_state(at);
    Half after(pairs[i].second, 64);
    after.accelerator.load_state(at);
    CHECK(torch::allclose(after.unscaled(), expected, 1e-2));
    after.micro_batch();
    CHECK_FALSE(after.accelerator.optimizer_step_was_skipped());
    CHECK(torch::allclose(after.net->weight, whole.net->weight, 1e-2));
  }
}

TEST_CASE("save_state() throws in a window with gradients of parameters outside all prepared models") {
  Accelerator accelerator(testing::world().split(testing::world().rank()),
                          {.cpu = true, .gradient_accumulation_steps = 2});
  const SharedFolder folder(testing::world());
  torch::nn::Linear net(3, 2);
  auto temperature = torch::ones({}).requires_grad_();
  std::vector<torch::Tensor> all = net->parameters();
  all.push_back(temperature);
  torch::optim::SGD sgd(all, torch::optim::SGDOptions(0.5));
  auto model = accelerator.prepare(net);
  auto optimizer = accelerator.prepare(sgd);
  {
    auto window = accelerator.accumulate(model);
    accelerator.backward((model(torch::ones({4, 3})) * temperature).sum());
    optimizer.step();
  }
  CHECK_THROWS_WITH_AS(
      accelerator.save_state(folder.path / std::to_string(testing::world().rank())),
      doctest::Contains("save_state: the accumulation window is open and a parameter that optimizer steps on and no "
                        "prepared model has holds a gradient, which is not saved; save where sync_gradients() is true"),
      accelerate::Error);
}

TEST_CASE("a bfloat16 run with float32 master weights resumes identically") {
  check_every_stop({.precision_policy = accelerate::precision::pure_bf16()});
}

TEST_CASE("a run resumes identically from asynchronous checkpoints that all ranks write") {
  check_every_stop({}, {.async = true, .durable = false, .share_work = true});
}

TEST_CASE("another world size resumes with equal weights and visits each remaining sample once") {
  const auto& world = testing::world();
  const SharedFolder folder(world);
  const auto alone = world.split(world.rank());
  const auto seen_by = [](Training& training, int64_t most) {  // without padding
    std::multiset<int64_t> seen;
    for (auto& [x, label] : training.loader) {
      const auto of_all = training.accelerator.gather_for_metrics(torch::round((x + 1) * 128.5).slice(1, 0, 1));
      for (const auto& number : numbers(of_all)) seen.insert(number);
      if (--most == 0) break;
    }
    return seen;
  };
  std::multiset<int64_t> all;
  for (int64_t i = 0; i < Training::kSamples; ++i) all.insert((i * 6) % 257);
  REQUIRE(std::set<int64_t>(all.begin(), all.end()).size() == all.size());
  std::multiset<int64_t> first;
  std::string learned;
  {
    Training training(world, {.cpu = true});
    training.run(2);
    first = seen_by(training, 2);
    training.accelerator.save_state(folder.path / "all");
    learned = training.learned(false);
  }
  {  // each rank separately
    Training training(alone, {.cpu = true});
    training.load(folder.path / "all");
    CHECK(training.learned(false) == learned);
    auto seen = first;
    seen.merge(seen_by(training, 0));
    CHECK(seen == all);
  }
  // Rank 0 alone, then all together.
  if (world.rank() == 0) {
    Training training(alone, {.cpu = true});
    training.run(2);
    first = seen_by(training, 3);
    training.accelerator.save_state(folder.path / "one");
    learned = training.learned(false);
  }
  world.barrier();
  Training training(world, {.cpu = true});
  training.load(folder.path / "one");
  const auto rest = seen_by(training, 0);
  if (world.rank() == 0) {
    CHECK(training.learned(false) == learned);
    first.merge(std::multiset<int64_t>(rest));
    CHECK(first == all);
  }
}

TEST_CASE("two models, optimizers, schedules and loaders each restore their own state, for any writer") {
  struct Two {
    Two() : accelerator(testing::world(), {.cpu = true}) {}
    [[nodiscard]] std::vector<torch::Tensor> tensors() const {
      std::vector<torch::Tensor> all;
      const auto add = [&](const torch::Tensor& tensor) { all.push_back(tensor.detach().clone()); };
      for (const auto& parameter : first->parameters()) {
        add(parameter);
        const auto& state = *adamw.state().at(parameter.unsafeGetTensorImpl());
        add(static_cast<const torch::optim::AdamWParamState&>(state).exp_avg());
      }
      for (const auto& parameter : second->parameters()) {
        add(parameter);
        const auto& state = *sgd.state().at(parameter.unsafeGetTensorImpl());
        add(static_cast<const torch::optim::SGDParamState&>(state).momentum_buffer());
      }
      return all;
    }
    void step_first() {
      accelerator.backward(model_1(torch::ones({2, 3})).sum());
      optimizer_1.step();
      schedule_1.step();
      optimizer_1.zero_grad();
    }
    void step_second() {
      accelerator.backward(model_2(torch::ones({2, 2})).square().sum());
      optimizer_2.step();
      schedule_2.step();
      optimizer_2.zero_grad();
    }
    Accelerator accelerator;
    torch::nn::Linear first{3, 2}, second{2, 4};
    torch::optim::AdamW adamw{first->parameters(), torch::optim::AdamWOptions(0.1)};
    torch::optim::SGD sgd{second->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9)};
    accelerate::optim::StepLR halving{adamw, 1, 0.5}, tenths{sgd, 1, 0.1};
    accelerate::data::Loader data_1 = samples(96), data_2 = samples(80);
    decltype(accelerator.prepare(first)) model_1 = accelerator.prepare(first), model_2 = accelerator.prepare(second);
    decltype(accelerator.prepare(adamw)) optimizer_1 = accelerator.prepare(adamw);
    decltype(accelerator.prepare(sgd)) optimizer_2 = accelerator.prepare(sgd);
    decltype(accelerator.prepare(halving)) schedule_1 = accelerator.prepare(halving),
                                           schedule_2 = accelerator.prepare(tenths);
    decltype(accelerator.prepare(data_1)) loader_1 = accelerator.prepare(data_1),
                                          loader_2 = accelerator.prepare(data_2);
  };
  for (const bool shard_spec : {false, true}) {
    CAPTURE(shard_spec);
    const SharedFolder folder(testing::world());
    std::vector<torch::Tensor> kept;
    {
      Two two;
      two.step_first();
      two.step_second();
      two.step_second();
      int64_t batches = 0;
      for ([[maybe_unused]] auto& one : two.loader_1) {
        for ([[maybe_unused]] auto& other : two.loader_2) {
          if (++batches < 2) continue;
          two.accelerator.save_state(folder.path / "c", {.durable = false, .share_work = shard_spec});
          break;
        }
        break;
      }
      kept = two.tensors();
    }
    Two two;
    two.step_second();
    two.accelerator.load_state(folder.path / "c");
    const auto loaded = two.tensors();
    REQUIRE(loaded.size() == kept.size());
    for (size_t i = 0; i < kept.size(); ++i) CHECK(torch::equal(loaded[i], kept[i]));
    CHECK(two.halving.steps() == 1);
    CHECK(two.tenths.steps() == 2);
    CHECK(two.halving.get_last_lr()[0] == doctest::Approx(0.05));
    CHECK(two.tenths.get_last_lr()[0] == doctest::Approx(0.002));
    const int64_t each = 4 * testing::world().size();
    CHECK(two.loader_1.state().consumed == each);
    CHECK(two.loader_2.state().consumed == 2 * each);
  }
}

TEST_CASE("a rank beyond the saved world size draws its own reproducible random numbers") {
  const auto& world = testing::world();
  const SharedFolder folder(world);
  const auto alone = world.split(world.rank());
  if (world.rank() == 0) Training(alone, {.cpu = true}).accelerator.save_state(folder.path / "one");
  world.barrier();
  const auto draws = [&] {
    Training training(world, {.cpu = true});
    training.load(folder.path / "one");
    return world.all_gather(torch::rand({1, 4}));
  };
  const auto once = draws(), again = draws();
  CHECK(torch::equal(once, again));
  for (int64_t rank = 1; rank < world.size(); ++rank) CHECK_FALSE(torch::equal(once[0], once[rank]));
}

TEST_CASE("an open window throws if it is loaded with another world size") {
  const auto& world = testing::world();
  if (world.size() == 1) return;
  const SharedFolder folder(world);
  {
    Training training(world, {.cpu = true, .gradient_accumulation_steps = 3});
    training.run(1);
    training.accelerator.save_state(folder.path / "within");
  }
  Training training(world.split(world.rank()), {.cpu = true});
  const auto expected_error = fmt::format(
      "the checkpoint was saved by {0} ranks within an accumulation window, and its gradients belong to single ranks; "
      "resume with {0} ranks instead of 1 rank, or load one that was saved while sync_gradients() was true",
      world.size());
  CHECK_THROWS_WITH(training.load(folder.path / "within"), doctest::Contains(expected_error.c_str()));
}

TEST_CASE("a failure on one rank fails the save on all ranks and keeps the previous checkpoint") {
  const auto& world = testing::world();
  const SharedFolder folder(world);
  Training training(world, {.cpu = true});
  training.accelerator.save_state(folder.path / "c");
  const bool guilty = training.accelerator.is_last_process();
  auto hook = training.accelerator.register_save_state_pre_hook([&](const fs::path&) {
    if (guilty) throw std::runtime_error("the disk of the last rank is gone");
  });
  training.run(2);
  CHECK_THROWS_WITH(training.accelerator.save_state(folder.path / "c"),
                    doctest::Contains("the disk of the last rank is gone"));
  CHECK(training.accelerator.load_state(folder.path / "c").step == 0);
  hook.remove();
  training.run(3);
  training.accelerator.save_state(folder.path / "c");
  CHECK(training.accelerator.load_state(folder.path / "c").step == 1);
  if (world.rank() == 0) CHECK(std::distance(fs::directory_iterator(folder.path), fs::directory_iterator()) == 1);
}

TEST_CASE("a checkpoint that one rank cannot find is an error on all, with both machines and the remedy") {
  const auto& world = testing::world();
  if (world.size() == 1) return;
  const SharedFolder folder(world);
  Training training(world, {.cpu = true});
  training.accelerator.save_state(folder.path / "c");
  const bool away = training.accelerator.is_last_process();
  const fs::path before = fs::current_path();
  fs::create_directories(folder.path / "elsewhere");
  fs::current_path(away ? folder.path / "elsewhere" : folder.path);
  const std::string host = accelerate::base::host_name();
  const std::string reason = fmt::format(
      "[rank {} of {}, {}] load_state: rank 0 ({}) has c, this rank ({}) has no such folder in {}; keep checkpoints "
      "where all machines see them, or copy it to each machine and save with save_on_each_node",
      world.size() - 1, world.size(), host, host, host, (folder.path / "elsewhere").string());
  std::string message;
  try {
    training.load("c");
  } catch (const accelerate::Error& error) {
    CHECK((error.kind() == accelerate::ErrorKind::io));
    message = error.what();
  }
  fs::current_path(before);
  CHECK((away ? message == reason : message.ends_with(reason)));
}
