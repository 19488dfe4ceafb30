// SPDX-License-Identifier: Apache-2.0
// Evaluation of a recording of a real GPU, compared with LibTorch's own trace.
#include "tests/testing.hpp"
//
#include <nlohmann/json.hpp>
#include <set>

#include "accelerate/accelerate.hpp"
#include "tests/temporary_folder.hpp"

TEST_CASE("device times cover all GPU kernels of the trace and the operators that started them") {
  const testing::TemporaryFolder folder;
  accelerate::Accelerator accelerator({.device = "cuda"});
  torch::nn::Linear layer(2048, 2048);
  auto [model, optimizer] = accelerator.prepare(layer, torch::optim::AdamW(layer->parameters(), 1e-3));
  const auto step = [&, &model = model, &optimizer = optimizer] {
    optimizer.zero_grad();
    const auto x = torch::ones({4096, 2048}).to(accelerator.device());
    accelerator.backward(model(x).square().mean());
    optimizer.step();
  };
  step();
  torch::cuda::synchronize();
  auto profiler = accelerator.profile(
      {.schedule_option = accelerate::ProfileSchedule{.active = 3, .repeat = 1}, .output_trace_dir = folder.path});
  for (int i = 0; i < 3; ++i) {  // the host runs ahead, to the end of the recording
    step();
    profiler.step();
  }
  profiler.stop();

  const auto& summary = profiler.summary();
  double of_operators = 0.0, of_trace = 0.0, copies = 0.0;
  int64_t products = 0;
  for (const auto& row : summary.operators) of_operators += static_cast<double>(row.device_ns) * 1e-3;
  const auto trace = nlohmann::json::parse(testing::text_of(folder.path / "profile_0.json"));
  const std::set<std::string> of_the_gpu{"kernel", "gpu_memcpy", "gpu_memset"};
  for (const auto& event : trace.at("traceEvents")) {
    const std::string category = event.value("cat", ""), name = event.value("name", "");
    if (!of_the_gpu.contains(category)) continue;
    of_trace += event.at("dur").get<double>();
    products += name.find("gemm") != std::string::npos || name.starts_with("nvjet");
    if (category != "kernel") copies += event.at("dur").get<double>();
  }
  CAPTURE(profiler.table(30));
  CHECK(of_trace > 0);
  CHECK(of_operators == doctest::Approx(of_trace).epsilon(1e-3));
  CHECK(static_cast<double>(summary.device_ns) * 1e-3 == doctest::Approx(of_trace).epsilon(1e-3));
  CHECK(products > 0);
  CHECK(products % 3 == 0);  // includes those of the last step
  CHECK(copies > 0);
  // A copy of 32 MiB over the bus and two products of 34 GFLOP take longest, independent of the host's times.
  std::set<std::string> first;
  for (size_t i = 0; i < 3; ++i) first.insert(summary.operators.at(i).name);
  CHECK(first.contains("aten::copy_"));
  CHECK(first.contains("aten::addmm"));
  CHECK(first.contains("aten::mm"));
  CHECK(summary.device_busy_ns > 0);
  CHECK(summary.device_busy_ns <= summary.length_ns);
  CHECK(profiler.table().find(", device busy ") != std::string::npos);
}
