// SPDX-License-Identifier: Apache-2.0
// Stages on devices of one process, which are the CPU here.
#include "tests/testing.hpp"
//
#include <cmath>
#include <vector>

#include "tests/pipeline/models.hpp"
#include "tests/refusal.hpp"

namespace pipeline_testing {

TEST_CASE("stages on devices of one process train as one model, for every schedule") {
  struct Case {
    PipelineSchedule schedule;
    int64_t stages_per_rank;
  };
  for (const auto& [schedule, stages] : std::vector<Case>{{PipelineSchedule::gpipe, 1},
                                                          {PipelineSchedule::one_forward_one_backward, 1},
                                                          {PipelineSchedule::interleaved, 2}}) {
    for (size_t count = 1; count <= 4; ++count) {
      CAPTURE(schedule_name(schedule));
      CAPTURE(count);
      auto reference = mlp();
      Pipeline pipeline(std::vector<at::Device>(count, at::kCPU), mlp(),
                        {.schedule = schedule, .micro_batches = 3, .stages_per_rank = stages});
      CHECK(pipeline.has_first_stage());
      CHECK(pipeline.has_last_stage());
      torch::optim::AdamW stock(reference->parameters(), 1e-2), own(pipeline.parameters(), 1e-2);
      for (int64_t step = 0; step < 10; ++step) {
        const auto input = waves({8, 7}, static_cast<double>(step)), target = waves({8, 3}, 0.5);
        own.zero_grad();
        stock.zero_grad();
        const auto loss = pipeline.train_step(input, target, squared_error);
        const auto expected = squared_error(reference->forward(input), target);
        expected.backward();
        CHECK(std::abs(loss.item<double>() - expected.item<double>()) < 1e-12);
        const double norm = torch::nn::utils::clip_grad_norm_(reference->parameters(), 0.1);
        CHECK(pipeline.clip_grad_norm_(0.1).item<double>() == doctest::Approx(norm).epsilon(1e-12));
        own.step();
        stock.step();
      }
      CHECK(difference(pipeline, reference) < 1e-12);
    }
  }
}

TEST_CASE("a tied weight is one parameter on one device, and cannot be on two") {
  auto reference = tied_transformer();
  Pipeline pipeline({at::kCPU, at::kCPU}, tied_transformer(), {.micro_batches = 2});
  const auto ids = torch::arange(20).remainder(10).reshape({4, 5}), target = waves({4, 5, 10}, 0.4);
  pipeline.train_step(ids, target, squared_error);
  squared_error(reference->forward(ids), target).backward();
  CHECK(parameters_of(pipeline).size() == parameters_of(*reference).size());
  CHECK(largest_difference({pipeline.parameters()[0].grad()}, {reference->parameters()[0].grad()}) < 1e-12);
  CHECK(
      testing::refusal([] {
        Pipeline({at::kCPU, at::kMeta}, tied_transformer());
      }) ==
      "Pipeline: 0.weight is used by stages on cpu and on meta; use ranks, which keep a copy of it each, or place its "
      "layers in stages of one device");
}

}  // namespace pipeline_testing
