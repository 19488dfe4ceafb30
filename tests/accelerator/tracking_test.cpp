// SPDX-License-Identifier: Apache-2.0
// Observation of a run through an Accelerator: trackers, progress, log lines, memory, profiler.
#include <unistd.h>

#include <accelerate/accelerate.hpp>
#include <array>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/temporary_folder.hpp"
#include "tests/testing.hpp"

using accelerate::Accelerator;
namespace base = accelerate::base;
using Lines = std::vector<std::string>;

namespace {

/// Collects log lines during its lifetime.
struct LogLines {
  LogLines() {
    base::reset_log_once();
    before = base::set_log_handler([this](base::LogLevel, std::string_view line) { lines.emplace_back(line); });
  }
  ~LogLines() { base::set_log_handler(before); }
  base::LogHandler before;
  Lines lines;
};

std::vector<nlohmann::json> rows_of(const std::filesystem::path& file) {
  std::vector<nlohmann::json> rows;
  for (const auto& line : testing::lines_of(file)) rows.push_back(nlohmann::json::parse(line));
  return rows;
}

/// Records images and histograms in order.
struct Pictures : accelerate::Tracker {
  [[nodiscard]] std::string name() const override { return "pictures"; }
  void log(const accelerate::tracking::Values&, accelerate::tracking::Step) override {}
  void log_images(const std::string&, const std::vector<accelerate::tracking::Image>& given,
                  accelerate::tracking::Step) override {
    images.insert(images.end(), given.begin(), given.end());
  }
  void log_histogram(const std::string&, const accelerate::tracking::Histogram& given,
                     accelerate::tracking::Step) override {
    histograms.push_back(given);
  }
  std::vector<accelerate::tracking::Image> images;
  std::vector<accelerate::tracking::Histogram> histograms;
};

}  // namespace

TEST_CASE("every rank may log, and the main process records numbers and tensors") {
  const testing::TemporaryFolder folder;
  accelerate::simulate(2, [&] {
    Accelerator accelerator({.log_with = {"jsonl", "csv"}, .logging_dir = folder.path});
    accelerator.init_trackers("digits", {{"lr", 0.5}, {"ranks", accelerator.num_processes()}});
    for (int step = 0; step < 3; ++step) {
      accelerator.log({{"loss", torch::full({}, 1.5)}, {"rank", accelerator.process_index()}}, step);
    }
    accelerator.get_tracker("jsonl")->log({{"aside", 1}}, 3);
    accelerator.end_training();
  });
  const auto rows = rows_of(folder.path / "digits" / "metrics.jsonl");
  REQUIRE(rows.size() == 5);
  CHECK(rows[0]["config"] == nlohmann::json{{"lr", 0.5}, {"ranks", 2}});
  for (size_t i = 1; i < 4; ++i) {
    CHECK(rows[i]["step"] == i - 1);
    CHECK(rows[i]["loss"] == 1.5);
    CHECK(rows[i]["rank"] == 0);
  }
  CHECK(rows[4]["aside"] == 1);
  CHECK(testing::lines_of(folder.path / "digits" / "metrics.csv").size() == 4);
}

TEST_CASE("without a logging_dir trackers write into the project folder") {
  const testing::TemporaryFolder folder;
  Accelerator accelerator({.project = {.project_dir = folder.path}, .log_with = {"csv"}});
  accelerator.init_trackers("digits");
  CHECK(std::filesystem::exists(folder.path / "digits" / "metrics.csv"));
}

TEST_CASE("images of any layout with floats from 0 to 1, and histograms, can be logged") {
  const auto pictures = std::make_shared<Pictures>();
  Accelerator accelerator({.log_with = {pictures}});
  accelerator.init_trackers("digits");
  const auto red_blue = torch::tensor({1.0, 0.0, 0.0, 0.0, -3.0, 7.0}).reshape({1, 3, 1, 2});
  accelerator.log_images("a batch", torch::cat({red_blue, red_blue * std::nan("")}), 1);
  accelerator.log_images("bytes", torch::tensor({9, 8, 7, 6}, at::kByte).reshape({2, 2}), 1);
  accelerator.log_images("bfloat16", torch::full({1, 1, 1}, 0.5, at::kBFloat16), 1);
  REQUIRE(pictures->images.size() == 4);
  CHECK(pictures->images[0].pixels == std::vector<uint8_t>{255, 0, 0, 0, 0, 255});
  CHECK(pictures->images[0].width == 2);
  CHECK(pictures->images[1].pixels == std::vector<uint8_t>(6, 0));
  CHECK(pictures->images[2].pixels == std::vector<uint8_t>{9, 8, 7, 6});
  CHECK(pictures->images[2].channels == 1);
  CHECK(pictures->images[3].pixels == std::vector<uint8_t>{128});
  accelerator.log_histogram("weights", torch::tensor({{1.0, 2.0}, {3.0, 4.0}}).t().requires_grad_(), 1);
  accelerator.log_histogram("none", torch::empty({0}), 1);
  REQUIRE(pictures->histograms.size() == 2);
  CHECK(pictures->histograms[0].sum == 10.0);
  CHECK(pictures->histograms[1].count == 0);
}

TEST_CASE("invalid images are refused with their shape, on ranks without a tracker too") {
  Accelerator accelerator;
  CHECK_THROWS_WITH(
      accelerator.log_images("x", torch::zeros({3})),
      doctest::Contains("log_images: the tensor is [3] Float, must be [N, C, H, W], [C, H, W] or [H, W]"));
  CHECK_THROWS_WITH(
      accelerator.log_images("x", torch::zeros({2, 4, 4, 3, 1})),
      doctest::Contains("log_images: the tensor is [2, 4, 4, 3, 1] Float, must be [N, C, H, W], [C, H, W] or [H, W]"));
  CHECK_THROWS_WITH(
      accelerator.log_images("x", torch::zeros({5, 2, 2})),
      doctest::Contains("log_images: the tensor is [5, 2, 2] Float, must have 1 to 4 channels before H and W"));
  CHECK_THROWS_WITH(accelerator.log_images("x", torch::zeros({2, 2}, at::kLong)),
                    doctest::Contains("log_images: the tensor is [2, 2] Long, must be of bytes or floating point"));
}

TEST_CASE("without log_with all calls are accepted and nothing is recorded") {
  const LogLines log;
  Accelerator accelerator;
  accelerator.init_trackers("digits", {{"lr", 0.5}});
  accelerator.log({{"loss", 1.0}}, 1);
  accelerator.log_images("x", torch::zeros({2, 2}));
  accelerator.log_histogram("x", torch::zeros({2, 2}));
  accelerator.log_text("x", "y");
  accelerator.end_training();
  CHECK(log.lines.empty());
}

TEST_CASE("a progress bar does not change the batches of a prepared loader") {
  Accelerator accelerator;
  auto data = accelerate::data::from_tensors(torch::arange(10), {}, {.batch_size = 4});
  auto loader = accelerator.prepare(data);
  int64_t sum = 0, ends = 0;
  for (auto& batch : accelerate::progress(loader, {.description = "pass", .disable = true})) {
    sum += batch.data.sum().template item<int64_t>();
    ends += loader.info().last ? 1 : 0;
  }
  CHECK(sum == 45);
  CHECK(ends == 1);
}

TEST_CASE("a prepared stream's progress bar has a total if its length is known") {
  const auto shown = [](std::optional<int64_t> length) {
    std::array<int, 2> ends{};
    REQUIRE(::pipe(ends.data()) == 0);
    Accelerator accelerator;
    const auto read = [](const accelerate::data::ReadContext&) {
      return [i = int64_t{0}]() mutable -> std::optional<torch::Tensor> {
        return i < 10 ? std::optional(torch::full({1}, i++)) : std::nullopt;
      };
    };
    auto loader = accelerator.prepare(
        accelerate::data::StreamLoader(accelerate::data::make_stream(read, length), {.batch_size = 4}));
    for ([[maybe_unused]] auto& batch : accelerate::progress(loader, {.output = ends[1]})) {
    }
    ::close(ends[1]);
    std::string text(4096, '\0');
    text.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], text.data(), text.size()), 0)));
    ::close(ends[0]);
    return text;
  };
  CHECK(shown(10).find(" 3/3 [") != std::string::npos);
  CHECK(shown(std::nullopt).starts_with("3it ["));
}

TEST_CASE("in-order log lines appear from every rank, rank 0 first; others only from the main process") {
  const LogLines log;
  accelerate::simulate(3, [] {
    const Accelerator accelerator;
    const auto logger = accelerator.logger({.level = base::LogLevel::info});
    logger.in_order().info("{} ranks", accelerator.num_processes());
    logger.info("once");
  });
  CHECK(log.lines == Lines{"[rank 0] 3 ranks", "[rank 1] 3 ranks", "[rank 2] 3 ranks", "[rank 0] once"});
}

TEST_CASE("on the CPU the reported memory is this process's") {
  const Accelerator accelerator;
  CHECK(accelerator.memory().resident_bytes > 0);
  CHECK(accelerator.memory().allocated_bytes == 0);
  accelerator.reset_peak_memory();
}

TEST_CASE("a profiler records the steps of a loop, its operators and its wait for data") {
  Accelerator accelerator;
  torch::nn::Linear net(8, 4);
  torch::optim::SGD sgd(net->parameters(), 0.1);
  auto data = accelerate::data::from_tensors(torch::ones({40, 8}), {}, {.batch_size = 4});
  auto [model, optimizer, loader] = accelerator.prepare(net, sgd, data);
  auto profiler =
      accelerator.profile({.schedule_option = accelerate::ProfileSchedule{.wait = 1, .active = 5, .repeat = 1}});
  for (auto& batch : loader) {
    optimizer.zero_grad();
    accelerator.backward(model(batch.data).sum());
    optimizer.step();
    profiler.step();
  }
  profiler.stop();
  REQUIRE(profiler.recordings() == 1);
  CHECK(profiler.summary().steps == 5);
  CHECK(profiler.summary().data_wait_ns > 0);
  CHECK(profiler.table().find("accelerate::next_batch") != std::string::npos);
  CHECK(profiler.table(100).find("aten::") != std::string::npos);
}
