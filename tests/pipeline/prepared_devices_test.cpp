// SPDX-License-Identifier: Apache-2.0
// prepare() with stages on devices of one process, which are the CPU here: training, windows and checkpoints.
#include "tests/testing.hpp"
//
#include <cmath>
#include <cstdint>
#include <memory>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "tests/checkpoint/folder.hpp"
#include "tests/pipeline/prepared_training.hpp"

namespace pipeline_testing {
namespace {

/// A prepared Pipeline on two devices of this process.
PipelineTraining devices_training(Accelerator& accelerator, const Task& task, const PipelineOptions& options) {
  return {accelerator, task, std::make_shared<Pipeline>(std::vector<at::Device>(2, at::kCPU), task.make(), options)};
}

const PipelineOptions kInterleaved{.schedule = PipelineSchedule::interleaved, .micro_batches = 2, .stages_per_rank = 2};

}  // namespace

TEST_CASE("a prepared pipeline on devices of each process trains like one process, alone and with data parallelism") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    accelerate::comm::run_threads(ranks, [&](const Group& world) {
      for (const Task& task : {Task{}, tied_task()}) {
        for (const int64_t window : {1, 2}) {
          CAPTURE(window);
          const AcceleratorOptions options{.cpu = true, .gradient_accumulation_steps = window};
          Accelerator one = alone(options);
          WholeTraining whole(one, task);
          const auto expected = whole.epochs(3);
          for (const PipelineOptions& stages : {PipelineOptions{.micro_batches = 3}, kInterleaved}) {
            Accelerator accelerator(world.duplicate(), options);
            auto training = devices_training(accelerator, task, stages);
            const auto seen = training.epochs(3);
            for (size_t i = 0; i < seen.size(); ++i) {
              // 3 batches per epoch. Before the end of a window each rank has only the gradients of its own batches.
              if (window == 1 || i % 3 != 0) CHECK(std::abs(seen[i] - expected[i]) < 1e-12);
            }
            CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
            accelerator.check_synchronized(std::get<0>(training.objects));
          }
        }
      }
    });
  }
}

TEST_CASE("checkpoints of a pipeline on devices of a process have the names of the whole model") {
  for (const int64_t ranks : {1, 2}) {
    CAPTURE(ranks);
    accelerate::comm::run_threads(ranks, [](const Group& world) {
      const testing::SharedFolder folder(world);
      for (const Task& task : {Task{}, tied_task()}) {
        Accelerator one = alone();
        WholeTraining whole(one, task);
        whole.epochs(2);
        if (world.rank() == 0) one.save_state(folder.path / "whole");
        world.barrier();
        const auto expected = whole.epochs(2);
        {
          Accelerator accelerator(world.duplicate(), {.cpu = true});
          auto training = devices_training(accelerator, task, {.micro_batches = 2});
          accelerator.load_state(folder.path / "whole");
          accelerator.save_state(folder.path / "devices");
          accelerator.save_model(std::get<0>(training.objects), folder.path / "model");
          CHECK(largest_difference(training.epochs(2), expected) < 1e-12);
          CHECK(difference(*training.pipeline, whole.layers) < 1e-12);
        }
        Accelerator single = alone(), loader = alone();
        WholeTraining continued(single, task), loaded(loader, task);
        single.load_state(folder.path / "devices");
        CHECK(largest_difference(continued.epochs(2), expected) < 1e-12);
        const auto names = loader.load_model(std::get<0>(loaded.objects), folder.path / "model");
        CHECK(names.missing.empty());
        CHECK(names.unexpected.empty());
        world.barrier();
      }
    });
  }
}

}  // namespace pipeline_testing
