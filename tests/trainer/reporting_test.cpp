// SPDX-License-Identifier: Apache-2.0
// Visible output of a training: trackers and the progress bar; and remains of one training in the next.
#include "tests/testing.hpp"
//
#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "accelerate/base/file_descriptor.hpp"
#include "accelerate/base/log.hpp"
#include "accelerate/base/remove_tree.hpp"
#include "accelerate/trainer/memory_delta.hpp"
#include "tests/build_folder.hpp"
#include "tests/trainer/support.hpp"

using namespace trainer_testing;
using accelerate::ProgressCallback;
using accelerate::simulate;
namespace fs = std::filesystem;

namespace {

/// A folder path that does not exist before and after the test.
struct ReportDir {
  ReportDir() { accelerate::base::remove_tree(path); }
  ~ReportDir() { accelerate::base::remove_tree(path); }
  fs::path path = fs::path(testing::build_folder()) / fmt::format("trainer_reporting_{}", getpid());
};

std::vector<nlohmann::json> json_lines(const fs::path& path) {
  std::vector<nlohmann::json> lines;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) lines.push_back(nlohmann::json::parse(line));
  return lines;
}

TrainingArguments reporting_to(const fs::path& folder) {
  return {.per_device_train_batch_size = 1,
          .num_train_epochs = 1,
          .learning_rate = 0.1,
          .eval_strategy = IntervalStrategy::epoch,
          .logging_steps = 1,
          .output_dir = folder,
          .report_to = {"jsonl"}};
}

/// Throws in the step of that number.
class ThrowsAt : public TrainerCallback {
 public:
  explicit ThrowsAt(int64_t step) : step_(step) {}
  void on_step_end(const TrainerContext& now, TrainerControl&) override {
    if (now.state.global_step == step_) throw std::runtime_error("the callback has enough");
  }

 private:
  int64_t step_;
};

using accelerate::base::FileDescriptor;

/// Both ends of a terminal with the given number of columns; the reader never blocks.
struct ScreenAndKeyboard {
  explicit ScreenAndKeyboard(unsigned short columns)
      : keyboard(::posix_openpt(O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK)) {
    REQUIRE((::grantpt(keyboard.get()) == 0 && ::unlockpt(keyboard.get()) == 0));
    screen.reset(::open(::ptsname(keyboard.get()), O_RDWR | O_NOCTTY | O_CLOEXEC));
    const winsize size{.ws_row = 24, .ws_col = columns, .ws_xpixel = 0, .ws_ypixel = 0};
    REQUIRE(::ioctl(screen.get(), TIOCSWINSZ, &size) == 0);
  }
  FileDescriptor keyboard, screen;
};

std::string all_text_from(int descriptor) {
  std::string text;
  std::array<char, 4096> buffer{};
  for (ssize_t n; (n = ::read(descriptor, buffer.data(), buffer.size())) > 0;) {
    text.append(buffer.data(), static_cast<size_t>(n));
  }
  return text;
}

/// The rows that a terminal would show; non-ASCII characters become #.
Strings rows_of(const std::string& written, size_t columns) {
  Strings rows(1);
  size_t row = 0, column = 0;
  const auto down = [&] {
    if (++row == rows.size()) rows.emplace_back();
  };
  for (size_t at = 0; at < written.size(); ++at) {
    const auto c = static_cast<unsigned char>(written[at]);
    if (c == '\r') {
      column = 0;
    } else if (c == '\n') {
      down();
    } else if (c == '\x1b') {  // [A, [K
      at += 2;
      written[at] == 'A' ? void(--row) : rows[row].resize(std::min(column, rows[row].size()));
    } else if ((c & 0xc0) != 0x80) {
      if (column == columns) {
        down();
        column = 0;
      }
      rows[row].resize(std::max(rows[row].size(), column + 1), ' ');
      rows[row][column++] = c < 0x80 ? static_cast<char>(c) : '#';
    }
  }
  while (!rows.empty() && rows.back().find_first_not_of(' ') == std::string::npos) rows.pop_back();
  return rows;
}

/// Trains and evaluates with the default progress bars and this descriptor as stderr.
void train_with_stderr(int descriptor) {
  const FileDescriptor before(::fcntl(STDERR_FILENO, F_DUPFD_CLOEXEC, 3));
  REQUIRE(::dup2(descriptor, STDERR_FILENO) == STDERR_FILENO);
  {
    TripleTrainer trainer(OneWeight(),
                          {.per_device_train_batch_size = 1, .max_steps = 5, .eval_strategy = IntervalStrategy::epoch},
                          {.train_dataset = triples(3), .eval_dataset = triples(2)});
    trainer.remove_callback<accelerate::PrinterCallback>();
    trainer.train();
  }
  REQUIRE(::dup2(before.get(), STDERR_FILENO) == STDERR_FILENO);
}

}  // namespace

TEST_CASE("trackers get the arguments, and values under transformers' names, on the main process") {
  const ReportDir folder;
  simulate(2, [&] {
    QuietTrainer trainer(OneWeight(), reporting_to(folder.path),
                         {.train_dataset = triples(4), .eval_dataset = triples(2)});
    trainer.evaluate();  // before the run begins
    trainer.train();
  });
  const auto lines = json_lines(folder.path / "runs" / "train" / "metrics.jsonl");
  REQUIRE(lines.size() == 5);  // the configuration, two steps, an evaluation, the end
  CHECK(lines[0]["config"]["learning_rate"] == 0.1);
  CHECK(lines[0]["config"]["max_steps"] == 2);
  CHECK(lines[0]["config"]["num_processes"] == 2);
  CHECK(lines[0]["config"]["lr_scheduler_type"] == "linear");
  CHECK(lines[1]["step"] == 1);
  CHECK(lines[1].contains("train/loss"));
  CHECK(lines[1].contains("train/learning_rate"));
  CHECK(lines[1]["train/epoch"] == 0.5);
  CHECK(lines[3].contains("eval/loss"));
  CHECK(lines[4].contains("train/train_runtime"));
}

TEST_CASE("a second train() continues the run of the first, and a custom tracker receives both") {
  struct Counting : accelerate::Tracker {
    [[nodiscard]] std::string name() const override { return "counting"; }
    void start(const accelerate::tracking::Run& run) override { projects.push_back(run.project); }
    void log(const accelerate::tracking::Values&, accelerate::tracking::Step) override { ++logs; }
    std::vector<std::string> projects;
    int logs = 0;
  };
  const auto counting = std::make_shared<Counting>();
  QuietTrainer trainer(
      OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 1, .logging_steps = 1, .run_name = "mine"},
      {.train_dataset = triples(2), .accelerator = {.log_with = {counting}}});
  trainer.train();
  trainer.train();
  CHECK(counting->projects == Strings{"mine"});
  CHECK(counting->logs == 6);
}

TEST_CASE("a log folder with another run causes one warning; a resumed training continues in it") {
  const ReportDir folder;
  Strings lines;
  const auto before = accelerate::base::set_log_handler([&](auto, std::string_view line) { lines.emplace_back(line); });
  auto arguments = reporting_to(folder.path);
  arguments.save_strategy = IntervalStrategy::steps;
  const TrainerParts parts{.train_dataset = triples(2), .eval_dataset = triples(2)};
  QuietTrainer first(OneWeight(), arguments, parts);
  first.train();
  first.train();
  arguments.resume_from_checkpoint = folder.path;
  QuietTrainer(OneWeight(), arguments, parts).train();
  CHECK(lines.empty());
  arguments.resume_from_checkpoint.reset();
  arguments.save_strategy = IntervalStrategy::no;
  QuietTrainer(OneWeight(), arguments, parts).train();
  accelerate::base::set_log_handler(before);
  CHECK(lines == Strings{here() + "report_to: " + (folder.path / "runs" / "train").string() +
                         " has the report of another run, to which this one is added; set another run_name "
                         "to keep them apart"});
}

TEST_CASE("an unknown tracker is refused with the known ones") {
  CHECK(refusal([] { QuietTrainer(OneWeight(), {.report_to = {"tensorbord"}, .logging_dir = "logs"}); }) ==
        here() +
            "log_with: there is no tracker 'tensorbord'; available: csv, jsonl, tensorboard, all; pass a user-defined "
            "tracker as a shared_ptr");
}

TEST_CASE("a log folder without write access ends the training on every rank before it starts") {
  const ReportDir folder;
  std::ofstream(folder.path) << "a file";
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    simulate(ranks, [&] {
      QuietTrainer trainer(OneWeight(), reporting_to(folder.path),
                           {.train_dataset = triples(4), .eval_dataset = triples(2)});
      const std::string reason = here(0, ranks) + "init_trackers: " + (folder.path / "runs" / "train").string() +
                                 " cannot be made: Not a directory; choose another logging_dir";
      const int64_t rank = trainer.accelerator().process_index();
      CHECK(refusal([&] { trainer.train(); }) == (ranks == 1 ? reason : here(rank, ranks) + "report_to: " + reason));
      CHECK(trainer.weight() == 0);
    });
  }
}

TEST_CASE("arguments and options with different log folders are refused") {
  CHECK(refusal([] {
          QuietTrainer(OneWeight(), {.report_to = {"csv"}, .logging_dir = "a"}, {.accelerator = {.logging_dir = "b"}});
        }) == "Trainer: logging_dir is a in TrainingArguments and b in AcceleratorOptions; set it only once");
}

TEST_CASE("a progress bar of the steps is shown on the main process only") {
  const ReportDir folder;
  fs::create_directories(folder.path);
  const std::string file = folder.path / "bars";
  const int output = ::open(file.c_str(), O_CREAT | O_RDWR, 0600);
  simulate(2, [&] {
    QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .max_steps = 5, .save_steps = 1},
                         {.train_dataset = triples(6), .eval_dataset = triples(2)});
    trainer.add_callback(std::make_shared<ProgressCallback>(
        accelerate::ProgressOptions{.line_interval = std::chrono::milliseconds(0), .width = 60, .output = output}));
    trainer.train();
    trainer.evaluate();
  });
  ::close(output);
  std::ifstream bars(file);
  Strings lines;
  for (std::string line; std::getline(bars, line);) lines.push_back(line);
  REQUIRE(lines.size() >= 6);
  CHECK(lines[0].find("| 1/5 [") != std::string::npos);
  CHECK(std::count_if(lines.begin(), lines.end(), [](const auto& line) { return line.starts_with("100%|"); }) >= 2);
  CHECK(std::count_if(lines.begin(), lines.end(), [](const auto& line) {
          return line.find("| 5/5 [") != std::string::npos;
        }) == 1);  // the fifth step and the end are one update
}

TEST_CASE("on a terminal of any width the bars leave one row, which never wraps") {
  for (const size_t columns : {100, 24, 9, 1}) {
    CAPTURE(columns);
    const ScreenAndKeyboard terminal(static_cast<unsigned short>(columns));
    train_with_stderr(terminal.screen.get());
    const std::string written = all_text_from(terminal.keyboard.get());
    const Strings rows = rows_of(written, columns);
    REQUIRE(rows.size() == 1);
    CHECK(rows.front().starts_with(std::string("100%|").substr(0, columns)));
    if (columns == 100) CHECK(rows.front().find("| 5/5 [") != std::string::npos);
    CHECK(written.ends_with("\r\n"));
  }
}

TEST_CASE("the bars in a file are a few whole lines, and a closed terminal does not stop the training") {
  const ReportDir folder;
  fs::create_directories(folder.path);
  const FileDescriptor file(::open((folder.path / "log").c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600));
  train_with_stderr(file.get());
  REQUIRE(::lseek(file.get(), 0, SEEK_SET) == 0);
  const std::string written = all_text_from(file.get());
  CHECK(written.find_first_of("\r\x1b") == std::string::npos);
  CHECK(std::count(written.begin(), written.end(), '\n') == 1);
  CHECK(written.starts_with("100%|"));
  CHECK(written.ends_with("]\n"));
  ScreenAndKeyboard terminal(80);
  terminal.keyboard.reset();
  CHECK_NOTHROW(train_with_stderr(terminal.screen.get()));
}

TEST_CASE("objects of an earlier train() are not saved by the next one") {
  const ReportDir folder;
  TrainingArguments arguments{.per_device_train_batch_size = 1,
                              .num_train_epochs = 1,
                              .output_dir = folder.path,
                              .save_strategy = IntervalStrategy::epoch};
  QuietTrainer trainer(OneWeight(), arguments, {.train_dataset = triples(2)});
  const auto files = [&](const std::string& checkpoint) {
    Strings names;
    for (const auto& entry : fs::directory_iterator(folder.path / "checkpoints" / checkpoint)) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  };
  trainer.train();
  trainer.train();
  const auto first = files("checkpoint_0");
  CHECK(files("checkpoint_1") == first);
  CHECK(std::count(first.begin(), first.end(), "scheduler.bin") == 1);
}

TEST_CASE("an exception of a callback ends the training, which can start again") {
  const auto throws = std::make_shared<ThrowsAt>(2);
  QuietTrainer trainer(OneWeight(), {.per_device_train_batch_size = 1, .num_train_epochs = 1},
                       {.train_dataset = triples(4), .callbacks = {throws}});
  CHECK_THROWS_WITH(trainer.train(), "the callback has enough");
  CHECK(trainer.state().global_step == 2);
  trainer.remove_callback<ThrowsAt>();
  CHECK(trainer.train().global_step == 4);
}

TEST_CASE("a callback cannot start a nested training") {
  struct Greedy : TrainerCallback {
    void on_epoch_end(const TrainerContext& now, TrainerControl&) override { now.trainer.train(); }
  };
  QuietTrainer trainer(OneWeight(), {.num_train_epochs = 1},
                       {.train_dataset = triples(2), .callbacks = {std::make_shared<Greedy>()}});
  CHECK(refusal([&] { trainer.train(); }) == here() + "train: this Trainer trains already; wait for that train()");
}

TEST_CASE("a null optimizer or schedule is refused") {
  struct NoOptimizer : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    std::shared_ptr<torch::optim::Optimizer> create_optimizer() override { return nullptr; }
  };
  struct NoSchedule : QuietTrainer {
    using QuietTrainer::QuietTrainer;
    std::shared_ptr<accelerate::optim::Scheduler> create_scheduler(torch::optim::Optimizer&, int64_t) override {
      return nullptr;
    }
  };
  NoOptimizer no_optimizer(OneWeight(), {}, {.train_dataset = triples(2)});
  CHECK(refusal([&] { no_optimizer.train(); }) ==
        here() + "create_optimizer: it returned a null pointer, must return an object");
  NoSchedule no_schedule(OneWeight(), {}, {.train_dataset = triples(2)});
  CHECK(refusal([&] { no_schedule.train(); }) ==
        here() + "create_scheduler: it returned a null pointer, must return an object");
}

TEST_CASE("memory figures are the increase since the start and the peak above it") {
  const accelerate::MemoryFigures before{.allocated_bytes = 10, .resident_bytes = 100};
  const accelerate::MemoryFigures after{.allocated_bytes = 30,
                                        .peak_allocated_bytes = 75,
                                        .peak_reserved_bytes = 90,
                                        .resident_bytes = 80,
                                        .peak_resident_bytes = 250};
  using accelerate::trainer::memory_metrics;
  CHECK(memory_metrics("train", before, after, /*on_accelerator=*/true) == Metrics{{"train_mem_cpu_alloc_delta", -20},
                                                                                   {"train_mem_cpu_peaked_delta", 170},
                                                                                   {"train_mem_gpu_alloc_delta", 20},
                                                                                   {"train_mem_gpu_peaked_delta", 45}});
  CHECK(memory_metrics("eval", after, {.resident_bytes = 90}, /*on_accelerator=*/false) ==
        Metrics{{"eval_mem_cpu_alloc_delta", 10}, {"eval_mem_cpu_peaked_delta", 0}});
}

TEST_CASE("skip_memory_metrics = false: training and separate evaluation report their memory") {
  constexpr int64_t bytes = int64_t{128} << 20;
  struct Holding : TrainerCallback {
    void on_step_end(const TrainerContext& now, TrainerControl&) override {
      if (now.state.global_step == 1) kept = torch::ones({bytes}, torch::kChar);
      if (now.state.global_step == 2) CHECK(torch::ones({2 * bytes}, torch::kChar)[0].item<int>() == 1);
    }
    at::Tensor kept;
  };
  const auto holding = std::make_shared<Holding>();
  TrainingArguments arguments{.per_device_train_batch_size = 1,
                              .num_train_epochs = 1,
                              .eval_strategy = IntervalStrategy::epoch,
                              .skip_memory_metrics = false};
  QuietTrainer trainer(OneWeight(), arguments,
                       {.train_dataset = triples(2), .eval_dataset = triples(2), .callbacks = {holding}});
  const auto trained = trainer.train().metrics;
  CHECK(trained.at("train_mem_cpu_alloc_delta") > static_cast<double>(bytes) / 2);
  CHECK(trained.at("train_mem_cpu_peaked_delta") > static_cast<double>(bytes));
  CHECK_FALSE(trained.contains("train_mem_gpu_alloc_delta"));
  CHECK(trainer.state().log_history.back().contains("train_mem_cpu_peaked_delta"));
  for (const auto& entry : trainer.state().log_history) CHECK_FALSE(entry.contains("eval_mem_cpu_alloc_delta"));
  CHECK(trainer.evaluate().contains("eval_mem_cpu_peaked_delta"));
  CHECK(trainer.predict(triples(2)).metrics.contains("test_mem_cpu_alloc_delta"));
  arguments.skip_memory_metrics = true;
  QuietTrainer quiet(OneWeight(), arguments, {.train_dataset = triples(2), .eval_dataset = triples(2)});
  CHECK_FALSE(quiet.train().metrics.contains("train_mem_cpu_alloc_delta"));
}
