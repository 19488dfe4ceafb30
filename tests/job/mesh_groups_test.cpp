// SPDX-License-Identifier: Apache-2.0
#include "tests/testing.hpp"
//
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <atomic>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "accelerate/comm/group.hpp"
#include "accelerate/job/mesh_groups.hpp"
#include "tests/refusal.hpp"

using accelerate::MeshDimension;
using accelerate::ParallelismConfig;
using accelerate::comm::Group;
using accelerate::comm::run_threads;
using accelerate::job::make_mesh_groups;
using accelerate::job::MeshGroups;

namespace {

/// Checks the error of the first rank of a group while the other ranks do not join. Ranks are numbers of the job.
void check_error(const Group& group, const MeshGroups& mesh, const std::vector<MeshDimension>& dimensions,
                 const std::string& name) {
  if (group.rank() != 0) return;
  auto members = mesh.config.group(mesh.world.rank(), dimensions);
  members.erase(members.begin());  // this rank
  auto pending = group.all_reduce_async(torch::ones({1}));
  CHECK(testing::refusal_of_any_rank([&] { pending.wait(std::chrono::milliseconds(100)); }) ==
        fmt::format("all_reduce: waited 0.1 s in operation 1 ([1] float32) over the {} {} ranks; {} {} did not join.",
                    group.size(), name, members.size() == 1 ? "rank" : "ranks", fmt::join(members, ", ")));
}

}  // namespace

TEST_CASE("errors of the groups of a mesh name their dimension") {
  using enum MeshDimension;
  run_threads(8, [](const Group& world) {
    const MeshGroups mesh = make_mesh_groups(world, {.dp_replicate_size = 2, .tp_size = 2, .cp_size = 2});
    check_error(mesh.data, mesh, {dp_replicate, dp_shard}, "data parallel");
    check_error(mesh.context, mesh, {cp}, "context parallel");
    check_error(mesh.tensor, mesh, {tp}, "tensor parallel");
    check_error(mesh.data_context, mesh, {dp_replicate, dp_shard, cp}, "data and context parallel");
    world.barrier();
  });
  run_threads(4, [](const Group& world) {
    const MeshGroups mesh = make_mesh_groups(world, {.dp_shard_size = 2, .pp_size = 2});
    check_error(mesh.data, mesh, {dp_replicate, dp_shard}, "data parallel");
    check_error(mesh.pipeline, mesh, {pp}, "pipeline parallel");
    world.barrier();
  });
}

TEST_CASE("errors of a dimension over all ranks of the job name it, too") {
  using enum MeshDimension;
  run_threads(2, [](const Group& world) {
    const MeshGroups tensor = make_mesh_groups(world, {.tp_size = 2});
    check_error(tensor.tensor, tensor, {tp}, "tensor parallel");
    const MeshGroups pipeline = make_mesh_groups(world, {.pp_size = 2});
    check_error(pipeline.pipeline, pipeline, {pp}, "pipeline parallel");
    const MeshGroups context = make_mesh_groups(world, {.cp_size = 2});
    check_error(context.context, context, {cp}, "context parallel");
    check_error(context.data_context, context, {dp_replicate, dp_shard, cp}, "data and context parallel");
    world.barrier();
  });
}

TEST_CASE("errors of a data parallel job name no dimension") {
  std::atomic<bool> failed = false;
  run_threads(2, [&](const Group& world) {
    const MeshGroups mesh = make_mesh_groups(world, {});
    if (world.rank() == 1) {
      while (!failed) std::this_thread::sleep_for(std::chrono::milliseconds(5));
      return;
    }
    auto pending = mesh.data.all_reduce_async(torch::ones({1}));
    const auto text = testing::refusal_of_any_rank([&] { pending.wait(std::chrono::milliseconds(100)); });
    CAPTURE(text);
    CHECK(text.starts_with("all_reduce: waited 0.1 s in operation "));
    CHECK(text.ends_with(" ([1] float32); rank 1 did not join."));
    failed = true;
  });
}
